"""Which FUSE connections may be aborted: by what /proc says of processes, in words that are partly theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.linux import fuse

MOUNT = "30 1 {device} / {point} rw,relatime - fuse.x {source} rw,user_id=0\n"


def process(proc: Path, name: str, *, devices: tuple[str, ...] = (), group: str = "/", state: str = "S") -> Path:
    """A process in a mount namespace of its own."""
    directory = proc / name
    (directory / "ns").mkdir(parents=True)
    (directory / "ns/mnt").touch()
    (directory / "mountinfo").write_text("".join(MOUNT.format(device=one, point="/x", source="x") for one in devices))
    (directory / "cgroup").write_text(f"0::{group}\n")
    (directory / "stat").write_text(f"{name} (a) b) ) {state} 1 1\n")
    return directory


def test_devices_are_read_of_whole_lines_only(tmp_path: Path) -> None:
    """No text of a path is taken for a line, however long it is, and whatever ends a line elsewhere."""
    one = process(tmp_path, "10")
    lie = "1000-2000 r--s 00000000 00:63 7"
    tail = "".join(f"{end}{lie}" for end in ("\r", "\v", "\f", "\x1c", "\x85", "\u2028"))
    rows = [f"1000-2000 r--s 00000000 00:2a 7   /{'x' * length}{lie}{tail}\n" for length in (0, 90, 97, 100, 70_000)]
    (one / "maps").write_text("".join(rows) + "3000-4000 r--s 00000000 08:01 7 /y\n", encoding="utf-8")
    assert fuse._used(str(one)) == {0x2A, 8 << 20 | 1}
    (one / "mountinfo").write_text(
        MOUNT.format(
            device="0:42", point="/x\x0c30 1 0:99 / /y rw - fuse x rw", source="\u202830 1 0:99 / / rw - fuse x"
        ),
        encoding="utf-8",
    )
    assert fuse._mounted(str(one)) == {42}
    assert fuse._used(str(tmp_path / "gone")) == fuse._mounted(str(tmp_path / "gone")) == set()


def test_what_is_mounted_elsewhere_is_not_a_tenants(tmp_path: Path) -> None:
    process(tmp_path, "10", devices=("0:41",), group="/pods/a/x")
    process(tmp_path, "11", devices=("0:42",), group="/pods/a")
    process(tmp_path, "12", devices=("0:43", "8:1"), group="/pods/ab")
    process(tmp_path, "13", devices=("0:44",), group="/")
    process(tmp_path, "14", devices=("0:45",), group="/pods/b\x0b0::/pods/a")
    assert fuse._of_others(10, "/pods/a", str(tmp_path)) == {43, 8 << 20 | 1, 44, 45}
    assert fuse._of_others(10, "", str(tmp_path)) == {42, 43, 8 << 20 | 1, 44, 45}


@pytest.mark.parametrize(("state", "thread", "undead"), [("Z", "D", True), ("Z", "Z", False), ("S", "D", False)])
def test_who_was_ended_and_is_still_there(tmp_path: Path, state: str, thread: str, undead: bool) -> None:
    process(tmp_path, "10", state=state)
    for number, of in ((10, state), (11, thread)):
        process(tmp_path / "10/task", str(number), state=of)
    assert fuse.is_undead(10, str(tmp_path)) is undead
    assert not fuse.is_undead(12, str(tmp_path))
