"""Tegra: what the machine's files say, and from mount lists to what a container gets."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError
from nvc.base.log import Log, open_log
from nvc.driver import tegra
from nvc.driver.facts import NvmlSystem
from nvc.driver.places import platform
from nvc.model import CSV_DIRECTORY, TEGRA, DriverOptions, Host, Inventory

RELEASE = "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64, DATE: Tue Aug  1\n"


class Board:
    """The files of a Tegra."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("/etc/nv_tegra_release", RELEASE)
        self.write("/proc/device-tree/model", "NVIDIA Jetson AGX Orin\0")
        self.write("/proc/device-tree/compatible", "nvidia,p3737-0000\0nvidia,tegra234\0")
        self.lists(l4t="")

    @property
    def host(self) -> Host:
        return Host(root=str(self.root), system=str(self.root))

    def write(self, path: str, text: str | bytes = "") -> Path:
        place = Path(f"{self.root}{path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        return place

    def lists(self, **texts: str) -> None:
        for name, text in texts.items():
            self.write(f"{CSV_DIRECTORY}/{name}.csv", text)

    def find(self, *, everything: bool = False) -> Inventory:
        system = NvmlSystem("35.4.1", 11040, 1)
        service = tegra.Tegra(tegra.look(self.host), lambda name: 11040, Log.none())
        assert service.system() == system
        options = DriverOptions(csv_all=everything)
        return tegra.discover(self.host, options, system, (service.gpu(0),), {})

    def paths(self, **options: bool) -> dict[str, str]:
        return {file.path: file.kind for file in self.find(**options).driver.components}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_what_the_files_say(board: Board) -> None:
    assert tegra.look(board.host) == tegra.TegraFacts("35.4.1", "NVIDIA Jetson AGX Orin", "8.7")


def test_what_nobody_says_is_unknown(tmp_path: Path) -> None:
    facts = tegra.look(Host(root=str(tmp_path), system=str(tmp_path)))
    assert facts == tegra.TegraFacts("0.0", "NVIDIA Tegra", "0.0")


@pytest.mark.parametrize(
    "text", ["", "R35", "# R35", "# R35 (release), GCID: 1", "# R99999 (release), REVISION: 1", "\0" * 50]
)
def test_a_release_that_is_none(board: Board, text: str) -> None:
    board.write("/etc/nv_tegra_release", text)
    assert tegra.look(board.host).release == "0.0"


def test_a_board_is_known_by_either_mark(board: Board) -> None:
    assert platform(board.host) == TEGRA
    (board.root / "etc/nv_tegra_release").unlink()
    assert platform(board.host) == ""
    board.write("/sys/devices/soc0/family", "tegra\n")
    assert platform(board.host) == TEGRA


def test_files_directories_and_links(board: Board) -> None:
    board.write("/usr/lib/tegra/libcuda.so.1.1", "x")
    (board.root / "usr/lib/tegra/libcuda.so").symlink_to("libcuda.so.1.1")
    board.lists(drivers="lib, /usr/lib/tegra/libcuda.so.1.1\ndir, /usr/lib/tegra\nsym, /usr/lib/tegra/libcuda.so\n")

    driver = board.find().driver

    assert {file.path: file.kind for file in driver.components} == {
        "/usr/lib/tegra/libcuda.so.1.1": "csv-file",
        "/usr/lib/tegra": "csv-directory",
        "/usr/lib/tegra/libcuda.so": "csv-link",
    }
    assert driver.components[2].links == (("libcuda.so", "libcuda.so.1.1"),)
    assert (driver.nvrm_version, driver.cuda_version, driver.platform) == ("35.4.1", "11.4", TEGRA)


def test_the_base_set_and_all(board: Board) -> None:
    for name in ("a", "b", "c", "d"):
        board.write(f"/usr/lib/{name}")
    board.lists(l4t="lib, /usr/lib/a", drivers="lib, /usr/lib/b", devices="lib, /usr/lib/c", cudnn="lib, /usr/lib/d")
    board.write(f"{CSV_DIRECTORY}/notes.txt", "lib, /usr/lib/e")

    assert list(board.paths()) == ["/usr/lib/a", "/usr/lib/b", "/usr/lib/c"]
    assert list(board.paths(everything=True)) == ["/usr/lib/a", "/usr/lib/b", "/usr/lib/c", "/usr/lib/d"]


def test_another_directory_of_lists(board: Board) -> None:
    board.write("/usr/lib/a")
    board.write("/opt/lists/l4t.csv", "lib, /usr/lib/a")
    rows, _ = tegra.read_lists(board.host.replace(csv="/opt/lists"), everything=False)
    assert [row.path for row in rows] == ["/usr/lib/a"]


def test_lists_that_are_named_alone(board: Board) -> None:
    board.lists(l4t="lib, /usr/lib/a")
    board.write("/opt/one.csv", "lib, /usr/lib/b\nlib, /usr/lib/c")
    board.write("/opt/two", "lib, /usr/lib/c\nlib, /usr/lib/d")
    host = board.host.replace(lists=("/opt/two", "/opt/one.csv"))
    rows, _ = tegra.read_lists(host, everything=True)
    assert [row.path for row in rows] == ["/usr/lib/c", "/usr/lib/d", "/usr/lib/b"]
    with pytest.raises(DetectionError, match=r"open failed: /opt/three"):
        tegra.read_lists(board.host.replace(lists=("/opt/three",)), everything=False)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("**/libcuda.so", "bcd"),
        ("/usr/lib/tegra/libcuda.so", "bcd"),
        ("/usr/lib/tegra/*", "d"),
        ("/usr/lib/*", "abcd"),
        ("**/libn*", "ad"),
        ("**/libnv[^x]*", "acd"),
        ("libcuda.so", "abcd"),
        ("**/x", "abcd"),
    ],
)
def test_links_that_are_left_out(board: Board, pattern: str, left: str) -> None:
    paths = ["/usr/lib/tegra/libcuda.so", "/usr/lib/tegra/libnvy.so", "/usr/lib/tegra/libnvx.so", "/usr/lib/sub/d/x.so"]
    for path in paths:
        board.write(path).unlink()
        (board.root / path[1:]).symlink_to("somewhere")
    board.write("/usr/lib/libcuda.so")
    rows, _ = tegra.csvmounts.parse(
        "".join(f"sym, {path}\n" for path in paths).encode() + b"lib, /usr/lib/libcuda.so", "l"
    )
    files, _, warnings = tegra.find(str(board.root), rows, (pattern,))
    assert [file.path for file in files[:-1]] == [paths["abcd".index(name)] for name in left]
    assert (files[-1].path, warnings) == ("/usr/lib/libcuda.so", [])


def test_patterns(board: Board) -> None:
    for name in ("x/a.so", "x/b.so", "x/.hidden.so", "y/a.so", "x/c.txt"):
        board.write(f"/usr/lib/{name}")
    board.lists(l4t="lib, /usr/lib/*/a.so\nlib, /usr/lib/x/[b]*\nlib, /usr/lib/x/*.so\nlib, /usr/lib/z?\n")

    assert list(board.paths()) == ["/usr/lib/x/a.so", "/usr/lib/y/a.so", "/usr/lib/x/b.so"]
    assert any("nothing matches" in text and "l4t.csv:4" in text for text in board.find().warnings)


def test_a_pattern_finds_no_more_than_a_row_may_name(board: Board) -> None:
    board.write("/etc/passwd")
    board.write("/proc/cpuinfo")
    board.lists(l4t="dir, /*\nlib, /pro?/cpuinfo\nlib, /[p]roc/cpuinfo\n")

    found = board.find()

    assert found.driver.components == ()
    assert any("would hide a whole directory" in text for text in found.warnings)
    assert sum("cannot be at /proc/cpuinfo" in text for text in found.warnings) == 2


def test_a_pattern_for_thousands_ends(board: Board) -> None:
    for number in range(1200):
        board.write(f"/usr/lib/many/{number:04d}")
    board.lists(l4t="lib, /usr/lib/many/*\n")

    found = board.find()

    assert len(found.driver.components) == 1000
    assert any("only the first 1000 matches" in text for text in found.warnings)


def test_what_is_missing_or_of_another_kind_is_a_warning_with_its_row(board: Board) -> None:
    board.write("/usr/lib/a")
    os.mkfifo(board.root / "usr/lib/pipe")
    (board.root / "usr/lib/circle").symlink_to("circle")
    board.lists(
        l4t="lib, /usr/lib/none\ndir, /usr/lib/a\nlib, /usr/lib\nsym, /usr/lib/a\nlib, /usr/lib/pipe\n"
        "lib, /usr/lib/circle\nlib, /usr/lib/a/b\nnonsense\n"
    )

    found = board.find()

    assert found.driver.components == ()
    for line, reason in enumerate(
        (
            "no such file or directory",
            "not a directory",
            "not a file",
            "invalid argument",
            "not a file",
            "too many levels of symbolic links",
            "not a directory",
            "no comma",
        ),
        1,
    ):
        assert any(f"l4t.csv:{line}" in text and text.endswith(reason) for text in found.warnings), (line, reason)


def test_links_stay_below_the_driver_root(board: Board) -> None:
    (board.root / "usr/lib").mkdir(parents=True)
    (board.root / "usr/lib/secret").symlink_to("/etc/shadow")
    (board.root / "usr/lib/up").symlink_to("../../../../../etc")
    board.lists(l4t="lib, /usr/lib/secret\nlib, /usr/lib/up/shadow\n")

    assert board.paths() == {}
    board.write("/etc/shadow", "the board's own")
    assert board.paths() == {"/usr/lib/secret": "csv-file", "/usr/lib/up/shadow": "csv-file"}


def test_a_link_is_made_with_its_text_whatever_it_says(board: Board) -> None:
    (board.root / "usr/lib").mkdir(parents=True)
    (board.root / "usr/lib/odd").symlink_to("../../..//etc/\nshadow")
    board.lists(l4t="sym, /usr/lib/odd")
    (file,) = board.find().driver.components
    assert file.links == (("odd", "../../..//etc/\nshadow"),)


@pytest.mark.root
def test_nodes_are_the_gpus(board: Board) -> None:
    names = ("nvmap", "nvhost-gpu", "nvhost-ctrl-gpu")
    (board.root / "dev").mkdir()
    for minor, name in enumerate(names):
        os.mknod(board.root / "dev" / name, stat.S_IFCHR | 0o660, os.makedev(505, minor))
    os.mknod(board.root / "dev/sda", stat.S_IFBLK | 0o660, os.makedev(8, 0))
    board.lists(devices="".join(f"dev, /dev/{name}\n" for name in (*names, "sda", "nvhost-vic")))

    found = board.find()

    (gpu,) = found.gpus
    assert found.driver.nodes == ()
    assert (gpu.node.path, gpu.node.major, gpu.node.minor) == ("/dev/nvhost-ctrl-gpu", 505, 2)
    assert [node.path for node in gpu.more_nodes] == ["/dev/nvmap", "/dev/nvhost-gpu"]
    assert (gpu.model, gpu.arch, gpu.uuid, gpu.bus_id) == ("NVIDIA Jetson AGX Orin", "8.7", "", "")
    assert any("/dev/sda" in text and "not a character device" in text for text in found.warnings)


def test_without_a_node_there_is_no_gpu(board: Board) -> None:
    found = board.find()
    assert found.gpus == ()
    assert any("no GPU to give" in text for text in found.warnings)


def test_no_lists_is_an_error_that_says_where_they_come_from(board: Board) -> None:
    (board.root / CSV_DIRECTORY[1:] / "l4t.csv").unlink()
    with pytest.raises(DetectionError, match=r"none of l4t\.csv, drivers\.csv, devices\.csv") as caught:
        board.find()
    assert "nvidia-l4t-init" in caught.value.hint
    (board.root / CSV_DIRECTORY[1:]).rmdir()
    with pytest.raises(DetectionError, match=r"open failed: .*no such file or directory"):
        board.find()


@pytest.mark.parametrize("kind", ["directory", "pipe", "circle", "dangling"])
def test_a_list_that_is_no_file_is_an_error_at_once(board: Board, kind: str) -> None:
    place = board.root / CSV_DIRECTORY[1:] / "l4t.csv"
    place.unlink()
    {
        "directory": lambda: place.mkdir(),
        "pipe": lambda: os.mkfifo(place),
        "circle": lambda: place.symlink_to("l4t.csv"),
        "dangling": lambda: place.symlink_to("/none"),
    }[kind]()
    with pytest.raises(DetectionError, match=r"open failed: .*l4t\.csv"):
        board.find()


def test_a_list_that_is_no_text_is_an_error(board: Board) -> None:
    board.write(f"{CSV_DIRECTORY}/l4t.csv", b"\x7fELF\0\0")
    with pytest.raises(DetectionError, match=r"l4t\.csv, line 1: not text"):
        board.find()
    board.write(f"{CSV_DIRECTORY}/l4t.csv", b"# " + b"x" * (2 << 20))
    with pytest.raises(DetectionError, match=r"l4t\.csv: file too large"):
        board.find()


def test_without_libcuda_the_version_is_unknown_and_the_log_says_why(tmp_path: Path) -> None:
    def fail(name: str) -> int:
        raise OSError(f"{name}: cannot open shared object file")

    log = open_log(str(tmp_path / "log"))
    service = tegra.Tegra(tegra.TegraFacts("35.4.1", "Orin", "8.7"), fail, log)
    assert service.system() == NvmlSystem("35.4.1", 0, 1)
    assert "libcuda.so.1: cannot open shared object file" in (tmp_path / "log").read_text()
    with pytest.raises(DetectionError, match="no GPU 1 on a Tegra"):
        service.gpu(1)
