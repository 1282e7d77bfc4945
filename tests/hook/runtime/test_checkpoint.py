"""``checkpoint`` and ``restore`` of an engine: passed on, but for containers under the guard."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.linux import const, rights, syscalls
from tests.hook.runtime.conftest import Bench
from tests.hook.runtime.test_guard import ASKS, GPU, GuardBench, guard, machines  # noqa: F401

RUNTIME = """#!/bin/sh
echo "$@" >> {record}
case "$*" in *state*) {state} ;; esac
"""
GUARDED = {"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "listenerMetadata": "nvc:1"}}}
OTHERS = {"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "listenerMetadata": "nvcx"}}}
#: As containerd, Podman and Docker start a runtime.
ROOT = ("--root", "/run/runc", "--log-format=json")
WORDS = (*ROOT, "checkpoint", "--image-path", "/images", "--work-path", "/scratch", "--leave-running", "c1")


def knows(bench: Bench, state: str = "") -> None:
    """The real runtime's answer to ``state``, a shell's command; the usual one names the bundle."""
    known = f"echo '{json.dumps({'id': 'c1', 'status': 'running', 'bundle': str(bench.bundle)})}'"
    bench._script("real", RUNTIME.format(record=bench.record, state=state or known))


def commands(bench: Bench) -> list[str]:
    return bench.record.read_text().splitlines() if bench.record.exists() else []


@pytest.mark.parametrize("content", [{}, OTHERS, {"linux": None}], ids=["no filter", "another's", "null"])
@pytest.mark.parametrize("env", [(), GPU], ids=["no GPU", "a whole GPU"])
def test_a_container_without_the_guard_is_passed_on(
    bench: Bench, env: tuple[str, ...], content: dict[str, Any]
) -> None:
    bench.write(env, **content)
    knows(bench)
    done = bench.run(*WORDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert commands(bench) == [" ".join([*ROOT, "state", "c1"]), " ".join(WORDS)]


def test_a_guarded_container_is_not_checkpointed(bench: Bench) -> None:
    bench.write(GPU, **GUARDED)
    knows(bench)
    done = bench.run(*WORDS)
    assert done.returncode == 1
    assert commands(bench) == [" ".join([*ROOT, "state", "c1"])], "the container goes on as it was"
    assert "checkpoint of container c1, whose share is under the guard: CRIU cannot restore" in done.stderr
    assert "nvc-py share suspend" in done.stderr


@pytest.mark.parametrize("state", ["exit 1", "echo {", "echo '{}'", 'echo \'{"bundle": "/nowhere"}\''])
def test_of_what_the_runtime_does_not_know_it_says_itself(bench: Bench, state: str) -> None:
    knows(bench, state)
    done = bench.run(*WORDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert commands(bench)[-1] == " ".join(WORDS)


def test_a_container_without_a_gpu_is_restored_as_it_is(bench: Bench) -> None:
    before = bench.content
    words = ("restore", "--bundle", str(bench.bundle), "--image-path", "/images", "--detach", "c1")
    assert bench.run(*words).returncode == 0
    assert (bench.executed, bench.content) == (list(words), before)


def test_a_container_with_a_whole_gpu_is_restored_with_what_it_was_created_with(bench: Bench) -> None:
    """CRIU looks in config.json for the mounts that it is to put back."""
    bench.write(GPU)
    assert bench.create().returncode == 0
    created = bench.content
    bench.write(GPU)
    words = ("restore", "--bundle", str(bench.bundle), "--image-path", "/images", "--detach", "c1")
    assert bench.run(*words).returncode == 0
    assert bench.executed == list(words)
    assert bench.content == created
    assert "hooks" in created


def test_a_container_with_a_share_is_not_restored(guard: GuardBench) -> None:  # noqa: F811
    """It would have the GPU, and no guard."""
    guard.restores = True
    with pytest.raises(InputError, match="restore of container c1, whose share is under the guard"):
        guard.create(**ASKS)
    assert not guard.registered
    assert guard.create() is None, "a whole GPU"
    assert guard.create(annotations={"nvc.share": "off"}) is None


def test_a_filter_without_its_listener_lets_no_call_through() -> None:
    """What CRIU's restore makes of the guard's filter: the kernel answers in place of the guard."""
    announce, allow = 0x7FC00000, 0x7FFF0000  # linux/seccomp.h: SECCOMP_RET_USER_NOTIF, SECCOMP_RET_ALLOW
    load, equal, answer = 0x20, 0x15, 0x06  # linux/bpf_common.h
    number = {"x86_64": 16, "aarch64": 29}[os.uname().machine]  # ioctl
    rows = ((load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, announce), (answer, 0, 0, allow))
    program = b"".join(struct.pack(const.SOCK_FILTER, *row) for row in rows)
    child = os.fork()
    if child == 0:
        found = 255
        try:
            rights.no_new_privs()
            syscalls.seccomp_filter(program)
            fcntl.ioctl(0, 0x5401, b"\0" * 64)
        except OSError as error:
            found = error.errno or 254
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.ENOSYS
