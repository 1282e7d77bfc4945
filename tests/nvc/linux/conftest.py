"""Fixtures for the kernel interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.linux import syscalls
from nvc.linux.root import Root


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run with the kernel's resolver, and as on a kernel without it."""
    before = set(syscalls.unavailable)
    if request.param == "walk":
        syscalls.unavailable.add("openat2")
    yield request.param
    syscalls.unavailable.clear()
    syscalls.unavailable.update(before)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A rootfs with links of every kind, beside a "host" that nothing may reach."""
    rootfs, host = tmp_path / "rootfs", tmp_path / "host"
    (rootfs / "usr/lib/x").mkdir(parents=True)
    (rootfs / "etc").mkdir()
    (rootfs / "proc").mkdir()
    (host / "secret").mkdir(parents=True)
    (host / "file").write_text("host")
    (rootfs / "usr/lib/file").write_text("inside")
    (rootfs / "etc/file").write_text("etc")
    links = {
        "lib": "usr/lib",
        "usr/etc": "/etc",
        "absolute": "/usr/lib",
        "chain1": "chain2",
        "chain2": "/chain3",
        "chain3": "usr/../lib",
        "up": "../../../../../..",
        "tohost": str(host),
        "tohostfile": str(host / "file"),
        "climb": "../host",
        "dangling": "/nowhere/dir",
        "danglingfile": "etc/new.conf",
        "loop": "loop",
        "loop1": "loop2",
        "loop2": "usr/../loop1",
        "tofile": "etc/file",
        "slash": "etc/file/",
        "tolast": "usr/lib/file",
    }
    for name, text in links.items():
        (rootfs / name).symlink_to(text)
    return rootfs


@pytest.fixture
def root(tree: Path) -> Iterator[Root]:
    with Root.open(str(tree)) as opened:
        yield opened
