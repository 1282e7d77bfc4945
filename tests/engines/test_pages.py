"""Every command of the engines' pages that sets an engine up, as it stands, with sid's engines; each reads the result.

``sudo`` is a program that becomes its command; ``systemctl`` one that has the engine read its files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import crio, pages, sight, userland
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.cgroupview import named
from tests.support.podmanbox import PodmanBox
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.engines
Show = Callable[[str, str], None]
#: The engine reads its files: page -> command.
READS = {
    "docker": "dockerd --validate --config-file=/etc/docker/daemon.json",
    "containerd": "containerd config dump",
    "crio": "{crio}/crio config",
    "podman": "podman info --format '{{{{.Host.OCIRuntime.Path}}}}'",
}
READS["rootless"] = READS["podman"]
#: What is there before: as a package brings it.
BEGIN = {
    "docker": "mkdir -p /etc/docker && echo '{}' >/etc/docker/daemon.json",
    "containerd": "mkdir -p /etc/containerd && echo 'version = 2' >/etc/containerd/config.toml",
    "crio": "mkdir -p /etc/crio/crio.conf.d && printf '[crio.runtime]\\n' >/etc/crio/crio.conf",
}


@pytest.mark.parametrize("page", READS)
def test_the_commands_of_a_page(bed: Bed, show: Show, page: str) -> None:
    view = named("hybrid") or named("v2")
    assert view is not None
    place, programs = bed.directory("podman"), bed.directory("bin")
    wrap = userland.wrap(userland.place("sid"))
    box = PodmanBox(bed.token, "runc", view, place, {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}, wrap=wrap)
    box.prepare()
    reads = READS[page].format(crio=crio.programs() if page == "crio" else "")
    (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (programs / "systemctl").write_text(f'#!/bin/sh\n[ "$2" = {page} ] && {reads} >&2\n')
    for name in ("sudo", "systemctl"):
        (programs / name).chmod(0o755)
    texts = [text for mark, text in pages.blocks(page) if not mark]
    lines = [f"{text.rstrip()}\n{reads}\necho ---" for text in texts]
    path = f"export PATH={programs}:{bed.commands.directory}:$PATH"

    said = box.script("", "\n".join(["set -eu", path, BEGIN.get(page, ":"), *lines]))

    assert said.code == 0, said.text
    assert said.out.count("---\n") >= len(texts) >= 1
    show(f"every command of {page}.md   # sid", "".join(texts))


def test_the_hook_of_the_page_on_rootless_engines(bed: Bed, runc: OciRuntime) -> None:
    """In a bundle; the program is the installed one, which is told of the simulated machine."""
    (text,) = [text for mark, text in pages.blocks("rootless") if mark == "json"]
    ((stage, (entry,)),) = json.loads(text)["hooks"].items()
    program, *words = entry["args"]
    hook = Hook(bed.commands.hook, [program, "--sim", str(bed.machine("h100x8")), *words], entry["env"])
    look = sight.arguments(libraries=("libcuda.so.1",))
    result = bed.run(runc, Container(bed.rootfs(), look, gpu_env("1"), {stage: [hook]}))

    assert result.code == 0, result.text
    assert all(sight.read(result.out).libraries.values())
    assert Path(entry["path"]).name == Path(shutil.which(bed.commands.hook) or "").name
