"""What a container says gets into messages, and a message may get into a file of the host: crun opens one for a hook's
output, as root, where an image's annotation names it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hook import report, request
from hook.environment import parse
from hook.runtime import annotated
from nvc.base.errors import InputError, NvcError, escaped, shown
from nvc.guard import profile
from nvc.request import requirements, selection
from nvc.request.hook_config import HookConfig
from nvc.share import dialects, spec

#: A word of /etc/ld.so.preload, a shell's, a line of /etc/crontab, of sudoers, of passwd.
EVIL = "x /evil.so y:/evil2;$(evil3)|`evil4`\n* * * * * root /evil5\nall ALL=(ALL) NOPASSWD: ALL\nx::0:0::/:/bin/sh\n"
FACTS = requirements.Facts("12.2", "535.104.05", "9.0", "Tesla")


def is_inert(text: str) -> bool:
    """No path, line or command of EVIL is in it."""
    return not any(mark in text for mark in ("/evil", "/bin", "$(", "|", "`", "\n"))


def said(call: Callable[[], object]) -> str:
    with pytest.raises(NvcError) as caught:
        call()
    return report.sentence("nvc-hook", caught.value)


def ask(name: str, value: str) -> None:
    """As much of a start as reads the environment."""
    env = {"NVIDIA_VISIBLE_DEVICES": "0", name: value}
    asked = request.build(env, privileged=True, config=HookConfig())
    assert asked is not None
    for one in asked.requirements:
        requirements.check(one, FACTS)
    for word in (asked.mig_config, asked.mig_monitor):
        if word:
            raise NvcError(selection_text(mig=word))
    dialects.read(env)


def selection_text(mig: str) -> str:
    with pytest.raises(NvcError) as caught:
        selection._mig_wide("mig-config", NvcError, mig, (), specific=False)
    return caught.value.message


READ = (
    *("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_X", "CUDA_VERSION", "NVIDIA_IMEX_CHANNELS"),
    *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"),
)
#: Of these HAMi takes any text for "no".
QUIET = {dialects.HAMI_POLICY}


@pytest.mark.parametrize("name", sorted({*READ, *dialects.VARIABLES} - QUIET))
def test_no_word_or_line_of_a_variable_is_in_a_message(name: str) -> None:
    texts = []
    for begin in ("", "cuda>=", "cuda>=99,", "brand=", "0=", "all,"):
        try:
            ask(name, begin + EVIL)
        except NvcError as error:
            texts.append(report.sentence("nvc-hook", error))
    assert texts
    assert [text for text in texts if not is_inert(text)] == []


CALLS: Mapping[str, Callable[[], object]] = {
    "a variable without a value": lambda: parse([EVIL.replace("=", "")]),
    "a variable's name": lambda: dialects.read({f"CUDA_{EVIL}_MEM_LIMIT": "1"}),
    "a device": lambda: request.build(
        {"NVIDIA_VISIBLE_DEVICES": "a.com/b=x y:$(evil)"}, privileged=True, config=HookConfig(skip_mode_detection=True)
    ),
    "an annotation's share": lambda: spec.parse(EVIL),
    "an annotation's name": lambda: annotated.check({f"run.oci.{EVIL}": ""}),
    "a profile's key": lambda: profile.rules({EVIL: 1}),
    "a requirement": lambda: requirements.check(f"cuda>=99,{EVIL}", FACTS),
}


@pytest.mark.parametrize("case", CALLS)
def test_no_other_text_of_a_container_is(case: str) -> None:
    text = said(CALLS[case])

    assert is_inert(text), text


def test_nor_a_text_that_only_a_defect_shows() -> None:
    assert is_inert(report.sentence("nvc-hook", report.internal(KeyError(EVIL))))


def test_what_a_foreign_text_keeps() -> None:
    assert shown("cuda>=11.0") == "'cuda>=11.0'"
    assert shown("50%, or so: \U0001f600é'/'") == r"'50%,\x20or\x20so:\x20\U0001f600\xe9\x27\x2f\x27'"
    assert len(shown("x" * 100)) == 50
    assert escaped("a/b") == r"a\x2fb"


# The descriptors of a hook.


@pytest.fixture
def fails(bundle: Any, launcher: Path) -> Callable[..., int]:
    """Run a hook that has something to say, with this standard output and error."""
    bundle.write(["NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={EVIL}"])

    def run(descriptor: int) -> int:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(launcher), "prestart"],
            input=bundle.state(),
            stdout=descriptor,
            stderr=descriptor,
            timeout=20,
            check=False,
        )
        return done.returncode

    return run


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_TRUNC, os.O_RDWR])
def test_a_hook_writes_into_no_file(fails: Callable[..., int], tmp_path: Path, flags: int) -> None:
    file = tmp_path / "ld.so.preload"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | flags, 0o700)
    try:
        assert fails(descriptor) == 1
    finally:
        os.close(descriptor)
    assert file.read_bytes() == b""


def test_nor_into_a_pipe_with_a_name(fails: Callable[..., int], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert fails(descriptor) == 1
        with pytest.raises(BlockingIOError):
            os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def test_nor_into_a_device(fails: Callable[..., int]) -> None:
    """/dev/zero takes everything as /dev/null does, but so does a disk."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        assert fails(descriptor) == 1
    finally:
        os.close(descriptor)


def test_it_speaks_to_a_pipe_a_socket_and_a_terminal(fails: Callable[..., int]) -> None:
    pair = socket.socketpair()
    ends = (os.pipe()[::-1], os.openpty()[::-1], tuple(one.detach() for one in pair))
    for theirs, ours in ends:
        assert fails(theirs) == 1
        assert b"unsupported capabilities" in os.read(ours, 4096)
        os.close(theirs)
        os.close(ours)


HARMLESS = (
    {"run.oci.keep_original_groups": "1", "io.podman.annotations.autoremove": "FALSE", "nvc.share": "mem=1Gi"},
    {"run.oci.systemd.subgroup": "", "run.oci.mount_context_type": "rootcontext"},
    {"org.systemd.property.CollectMode": "'inactive-or-failed'", "org.systemd.property.TimeoutStopUSec": "uint64 1"},
    {"org.systemd.property.KillSignal": "37", "org.systemd.property.Delegate": "true"},
)
HARMFUL = (
    *("run.oci.hooks.stderr", "run.oci.hooks.stdout", "run.oci.handler", "run.oci.seccomp_bpf_data"),
    *("run.oci.seccomp_bpf_data\0x", "Run.oci.hooks.stderr", "run.oci.seccomp.receiver", "run.oci.seccomp.plugins"),
    *("run.oci.pidfd_receiver", "run.oci.of_tomorrow", "org.systemd.property.DeviceAllow", "org.criu.config"),
    *("org.systemd.property.Conflicts", "org.systemd.property.MemoryMax", "org.systemd.property.FailureAction"),
)


@pytest.mark.parametrize("found", HARMLESS)
def test_annotations_of_engines_are_accepted(found: dict[str, str]) -> None:
    annotated.check(found)


@pytest.mark.parametrize("name", HARMFUL)
def test_annotations_that_change_what_a_runtime_does_are_not(name: str) -> None:
    with pytest.raises(InputError, match="a container with GPUs cannot have it"):
        annotated.check({name: "x"})


@pytest.mark.parametrize("value", ["../../x", "..", "."])
def test_a_cgroup_outside_of_the_scope_is_not(value: str) -> None:
    with pytest.raises(InputError):
        annotated.check({"run.oci.systemd.subgroup": value})
