"""Tegra (Jetson): no NVML; the driver's packages have lists of what a container needs.

Source: libnvidia-container.md 2.5, 8.2.

Facts about the machine come from files and from libcuda. The lists (``nvc.formats.csvmounts``) name files, directories,
links and device nodes of the host; each is shown to the container where it is on the host.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat

from nvc.base.errors import DetectionError, reason
from nvc.base.record import Record
from nvc.driver import tables
from nvc.driver.facts import NvmlGpu, NvmlLoads, NvmlSystem
from nvc.driver.locate import host_path, read_bytes, read_text, resolve, status
from nvc.driver.places import TEGRA_RELEASE
from nvc.formats import FormatError, csvmounts
from nvc.model import NVCAPS_NONE, TEGRA, DeviceNode, DriverFile, DriverInfo, Gpu, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from nvc.base.log import Log
    from nvc.formats.csvmounts import CsvRow
    from nvc.model import DriverOptions, Host

#: "# R35 (release), REVISION: 4.1, GCID: ..."
_RELEASE = re.compile(r"#\s*R([0-9]{1,4})\b[^,]*,\s*REVISION:\s*([0-9]{1,4}(?:\.[0-9]{1,4})*)")
_MODEL, _COMPATIBLE = "/proc/device-tree/model", "/proc/device-tree/compatible"
#: An unknown version, which meets no requirement.
UNKNOWN = "0.0"
CUDA_LIBRARY = "libcuda.so.1"
#: Nodes that a GPU of Tegra has, the newest driver's first.
_GPU_NODES = ("/dev/nvgpu/igpu0/ctrl", "/dev/nvhost-ctrl-gpu", "/dev/nvhost-gpu")
_PATTERN = frozenset("*?[")
#: Files that one pattern may stand for.
_MATCHES = 1000
_KINDS = {"lib": (stat.S_ISREG, "file"), "dir": (stat.S_ISDIR, "directory"), "dev": (stat.S_ISCHR, "character device")}


class TegraFacts(Record):
    """release: of L4T ("35.4.1"); model: the board's name; arch: compute capability of the GPU."""

    release: str
    model: str
    arch: str


def look(host: Host) -> TegraFacts:
    """The facts in the machine's files. Raises nothing: what is missing is UNKNOWN."""
    release = _RELEASE.search(_text(host_path(host.root, TEGRA_RELEASE)))
    compatible = _text(host_path(host.system, _COMPATIBLE)).split("\0")
    chips = (word.removeprefix("nvidia,") for word in compatible)
    return TegraFacts(
        f"{release[1]}.{release[2]}" if release else UNKNOWN,
        _text(host_path(host.system, _MODEL)).strip("\0 \n") or "NVIDIA Tegra",
        next((tables.TEGRA_ARCHES[chip] for chip in chips if chip in tables.TEGRA_ARCHES), UNKNOWN),
    )


def _text(path: str) -> str:
    try:
        return read_text(path, 1 << 16)
    except OSError:
        return ""


class Tegra:
    """The driver service's verbs, in NVML's place. ask: ``nvc.bindings.library.cuda_version``."""

    def __init__(self, facts: TegraFacts, ask: Callable[[str], int], log: Log) -> None:
        self._facts = facts
        self._ask = ask
        self._log = log

    def system(self) -> NvmlSystem:
        """The release, the CUDA version of libcuda, one GPU."""
        try:
            cuda = self._ask(CUDA_LIBRARY)
        except OSError as error:
            self._log.warn(f"the CUDA version is unknown, so requirements on it fail: {error}")
            cuda = 0
        return NvmlSystem(self._facts.release, cuda, 1)

    def load(self) -> NvmlLoads:
        """None: there is no NVML to ask."""
        return NvmlLoads(())

    def gpu(self, index: int) -> NvmlGpu:
        """The one GPU. Its UUID is unknown until it is used, and it has no bus address."""
        if index != 0:
            raise DetectionError(f"there is no GPU {index} on a Tegra")
        facts = self._facts
        return NvmlGpu(0, 0, facts.model, 0, "", 0, 0, 0, facts.arch, False, False, ())


def discover(
    host: Host, options: DriverOptions, system: NvmlSystem, gpus: Sequence[NvmlGpu], environ: Mapping[str, str]
) -> Inventory:
    """What the lists give to a container. An unusable row becomes a warning.

    Raises DetectionError when there are no lists, or one cannot be read.
    """
    from nvc.driver.discover import cuda_text

    listed, warnings = read_lists(host, everything=options.csv_all)
    components, nodes, more = find(host.root, listed, host.ignored_links)
    warnings += more
    if not nodes:
        warnings.append(f"no device node in the lists of {host.csv} exists, so there is no GPU to give")
    driver = DriverInfo(
        system.driver_version, cuda_text(system.cuda_version), (), (), (), (), (), (), TEGRA, components
    )
    found = tuple(_gpu(gpu, nodes) for gpu in gpus if nodes)
    return Inventory(driver, found, NVCAPS_NONE, None, None, tuple(warnings))


def read_lists(host: Host, *, everything: bool) -> tuple[list[CsvRow], list[str]]:
    """The rows of the base lists, all lists or those that the host names, and warnings. Raises DetectionError."""
    hint = "JetPack's package nvidia-l4t-init brings these lists; modes.csv.mount-spec-path names another directory"
    rows: dict[tuple[str, str], CsvRow] = {}
    warnings: list[str] = []
    for path in host.lists or _lists(host, everything, hint):
        try:
            data = read_bytes(host_path(host.root, resolve(host.root, path)), csvmounts.MAX_SIZE + 1)
            found, problems = csvmounts.parse(data, path)
        except OSError as error:
            raise DetectionError(f"open failed: {path}: {reason(error)}", hint=hint) from error
        except FormatError as error:
            raise DetectionError(f"unsupported file format: {error}", hint="reinstall the package it is of") from error
        warnings += [f"skipping {problem}" for problem in problems]
        for row in found:
            rows.setdefault((row.type, row.path), row)
    return list(rows.values()), warnings


def _lists(host: Host, everything: bool, hint: str) -> list[str]:
    """The lists in the directory. Raises DetectionError when there are none."""
    try:
        present = sorted(name for name in os.listdir(host_path(host.root, resolve(host.root, host.csv))))
    except OSError as error:
        raise DetectionError(f"open failed: {host.csv}: {reason(error)}", hint=hint) from error
    names = [name for name in tables.CSV_BASE if name in present]
    if everything:
        names += [name for name in present if name.endswith(".csv") and name not in names]
    if not names:
        raise DetectionError(f"no list in {host.csv}: none of {', '.join(tables.CSV_BASE)} is there", hint=hint)
    return [f"{host.csv}/{name}" for name in names]


def find(
    root: str, rows: Iterable[CsvRow], ignored: Sequence[str] = ()
) -> tuple[tuple[DriverFile, ...], tuple[DeviceNode, ...], list[str]]:
    """The files, directories and links of the rows that exist, the device nodes, and warnings.

    ignored: patterns of links that are left out, of whole paths, or behind ``**/`` of names in any directory.
    """
    files: dict[str, DriverFile] = {}
    nodes: dict[str, DeviceNode] = {}
    warnings: list[str] = []
    for row in rows:
        for path in _expanded(root, row, warnings):
            if row.type == "sym" and any(_fits(path, pattern) for pattern in ignored):
                continue
            try:
                problem = csvmounts.place_problem(row.type, path) or _add(root, row.type, path, files, nodes)
            except OSError as error:
                problem = reason(error)
            if problem:
                warnings.append(f"missing {path} ({row.place}): {problem}")
    return tuple(files.values()), tuple(nodes.values()), warnings


def _add(root: str, kind: str, path: str, files: dict[str, DriverFile], nodes: dict[str, DeviceNode]) -> str:
    """Add what is at ``path``; returns why it does not match the row, or "". Raises OSError."""
    if kind == "sym":
        directory, _, name = path.rpartition("/")
        text = os.readlink(f"{host_path(root, resolve(root, directory or '/')).rstrip('/')}/{name}")
        files.setdefault(path, DriverFile(path, "csv-link", "", ((name, text),)))
        return ""
    found = status(root, path)
    is_kind, word = _KINDS[kind]
    if not is_kind(found.st_mode):
        return f"not a {word}"
    if kind == "dev":
        nodes.setdefault(path, DeviceNode(path, os.major(found.st_rdev), os.minor(found.st_rdev)))
    else:
        files.setdefault(path, DriverFile(path, "csv-file" if kind == "lib" else "csv-directory", ""))
    return ""


def _fits(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern of Go's path/filepath: ``*`` ends at a slash, ``[^`` negates."""
    if pattern.startswith("**/"):
        path, pattern = path.rpartition("/")[2], pattern.removeprefix("**/")
    parts, patterns = path.split("/"), pattern.replace("[^", "[!").split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _expanded(root: str, row: CsvRow, warnings: list[str]) -> list[str]:
    """The paths that a row stands for: its own, or what its pattern matches below the root."""
    if not _PATTERN.intersection(row.path):
        return [row.path]
    found: list[str] = []
    for path in _matches(root, "", row.path.strip("/").split("/")):
        if len(found) >= _MATCHES:
            warnings.append(f"{row.place}: only the first {_MATCHES} matches of {row.path} are used")
            break
        found.append(path)
    if not found:
        warnings.append(f"missing {row.path} ({row.place}): nothing matches")
    return found


def _matches(root: str, base: str, parts: list[str]) -> Iterator[str]:
    head, rest = parts[0], parts[1:]
    if not _PATTERN.intersection(head):
        names = [head]
    else:
        try:
            names = sorted(os.listdir(host_path(root, resolve(root, base or "/"))))
        except OSError:
            return
        # As in a shell, a pattern has to say so to match a hidden file.
        names = [name for name in names if fnmatch.fnmatchcase(name, head) and (head[0] == "." or name[0] != ".")]
    for name in names:
        path = f"{base}/{name}"
        if rest:
            yield from _matches(root, path, rest)
        elif head != name or os.path.lexists(host_path(root, path)):
            yield path


def _gpu(fact: NvmlGpu, nodes: Sequence[DeviceNode]) -> Gpu:
    by_path = {node.path: node for node in nodes}
    node = next((by_path[path] for path in _GPU_NODES if path in by_path), nodes[0])
    others = tuple(other for other in nodes if other != node)
    # Nodes belong to the GPU, not to the driver: a container without a GPU gets none of them.
    return Gpu(fact.index, fact.minor, fact.name, "Unknown", fact.uuid, "", fact.arch, node, "", more_nodes=others)
