"""Hooks whose entry and arguments name different stages: an error, and neither container nor host is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import leftovers, rootfs
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

WRONG = [
    ("prestart", "createContainer", "not in the container's mount namespace"),
    ("createRuntime", "createContainer", "not in the container's mount namespace"),
    ("createContainer", "prestart", "container state has pid 1"),
    ("createContainer", "createRuntime", "container state has pid 1"),
    ("prestart", "startContainer", "unknown stage"),
]


@pytest.mark.parametrize(("entry", "argument", "words"), WRONG)
def test_runc(bed: Bed, runc: OciRuntime, entry: str, argument: str, words: str) -> None:
    tree = bed.rootfs()
    before, mounts = rootfs.fingerprint(tree), leftovers.mountinfo(token=bed.token)

    result = bed.run(runc, Container(tree, ["/bin/true"], gpu_env("0"), {entry: [bed.hook(argument)]}))

    assert result.code != 0
    assert words in result.text
    assert before == rootfs.fingerprint(tree)
    assert mounts == leftovers.mountinfo(token=bed.token)


@pytest.mark.parametrize(("entry", "argument", "words"), WRONG)
def test_crun(bed: Bed, ask: Callable[[str, str], OciRuntime], entry: str, argument: str, words: str) -> None:
    """crun keeps what a hook says for itself: the log has it."""
    log = bed.directory("log") / "hook.log"
    tree = bed.rootfs()
    before = rootfs.fingerprint(tree)

    hook = bed.hook(argument, "--debug", str(log))
    result = bed.run(ask("crun", "v1"), Container(tree, ["/bin/true"], gpu_env("0"), {entry: [hook]}))

    assert result.code != 0
    said = log.read_text() if log.exists() else ""
    assert argument == "startContainer" or words.replace("has pid 1", "has no pid") in said
    assert before == rootfs.fingerprint(tree)
