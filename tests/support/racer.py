"""A hostile neighbour of an image: exchanges the paths that are worked on with traps, some ten thousand times a second;
and canaries, files of the host's that tell whether anything touched them."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import injection
from tests.support.injection import VERSION
from tests.support.isolation import end_with_parent
from tests.support.rootfs import multiarch

_RENAME_EXCHANGE = 2
_COUNT = struct.Struct("=Q")
#: Exchanges a second. As many as a core makes would take that core, and half of the rounds, from what is tried.
RATE = 10_000
#: Names that are exchanged at once, and how often before the pause: even, so that they are back in their places.
_AT_ONCE, _IN_TURN = 4, 10
#: Of the pauses, one in so many is spent with the traps in the names' places: what was looked at before is then gone
#: when it is used. In the others the names are what they were.
_TRAPPED = 2

#: Names that are resolved, made, read or replaced below a root, by configure, the hook, the hooks of CDI
#: specifications and shares.
NAMES = (
    "dev",
    "etc",
    "etc/debian_version",
    "etc/ld.so.cache",
    "etc/ld.so.cache.nvc-0123456789abcdef",
    "etc/ld.so.cache.nvc-0123456789abcdef/cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/ld.so.conf.d/00-nvcr-nvc.conf",
    "etc/ld.so.conf.d/zz-nvcr-nvc.conf",
    "etc/ld.so.preload",
    "etc/nvidia",
    "etc/nvidia/nvidia-application-profiles-rc.d",
    "lib",
    "lib64",
    "lib/firmware",
    "proc",
    "run",
    "run/nvidia-persistenced",
    "run/nvidia-persistenced/socket",
    "tmp/nvidia-mps",
    "usr",
    "usr/bin",
    "usr/bin/nvidia-smi",
    "usr/lib",
    f"usr/lib/{multiarch()}",
    f"usr/lib/{multiarch()}/libcuda.so.1",
    f"usr/lib/{multiarch()}/libnvidia-ml.so.1",
    "usr/lib64",
    f"usr/lib64/libcuda.so.{VERSION}",
    "usr/lib64/libcuda.so.1",
    "usr/local/cuda/compat",
    "var/cache/ldconfig",
    "var/cache/ldconfig/aux-cache",
    "var/run",
)
#: Those of them that are files, or links, where they are anything.
FILES = (
    "etc/debian_version",
    "etc/ld.so.cache",
    "etc/ld.so.cache.nvc-0123456789abcdef/cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d/00-nvcr-nvc.conf",
    "etc/ld.so.conf.d/zz-nvcr-nvc.conf",
    "etc/ld.so.preload",
    "run/nvidia-persistenced/socket",
    "usr/bin/nvidia-smi",
    f"usr/lib/{multiarch()}/libcuda.so.1",
    f"usr/lib/{multiarch()}/libnvidia-ml.so.1",
    f"usr/lib64/libcuda.so.{VERSION}",
    "usr/lib64/libcuda.so.1",
    "var/cache/ldconfig/aux-cache",
)
#: ldconfig opens what is in it, and waits at a FIFO until its time is over (test_faults.py): few rounds would be left.
_INCLUDED = "etc/ld.so.conf.d/"


def _sparse(place: Path, outside: Path) -> None:
    place.touch()
    os.truncate(place, 1 << 40)


#: What takes a name's place, made as (place, tree of the host).
TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "absolute": lambda place, outside: place.symlink_to(outside),
    "dots": lambda place, outside: place.symlink_to("../" * 40 + str(outside)[1:]),
    "file of the host": lambda place, outside: place.symlink_to("../" * 40 + f"{outside}/precious"[1:]),
    "magic": lambda place, outside: place.symlink_to(f"/proc/self/root{outside}"),
    "dangling": lambda place, outside: place.symlink_to("../" * 40 + f"{outside}/made"[1:]),
    "loop": lambda place, outside: place.symlink_to(place.name),
    "fifo": lambda place, outside: os.mkfifo(place),
    "device": lambda place, outside: os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
    "socket": lambda place, outside: os.mknod(place, stat.S_IFSOCK | 0o666),
    "directory": lambda place, outside: place.mkdir(),
    "sparse": _sparse,
}


class Canary:
    """A tree of the host with names that our programs look for: its inodes, contents, and all their times."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in NAMES:
            if name not in FILES:
                (place / name).mkdir(parents=True, exist_ok=True)
        for name in ("precious", "ld.so.cache", "ld.so.conf", "libcuda.so", "nvidia-smi", "usr/lib64/x.so"):
            (place / name).write_text("of the host")
        for path in (place, *place.rglob("*")):
            # Long ago: reading a file, or looking a directory through, changes its time of access.
            os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
        self._before = self._look()

    def _look(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        # Directories last: they are read here.
        for path in sorted((self.place, *self.place.rglob("*")), key=lambda one: one.is_dir()):
            status = path.lstat()
            times = status.st_mtime_ns, status.st_ctime_ns
            if not stat.S_ISDIR(status.st_mode):
                number = os.open(path, os.O_RDONLY | os.O_NOATIME)
                times = (*times, status.st_atime_ns, os.read(number, 64))  # type: ignore[assignment]
                os.close(number)
            found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_size, *times)
        return found

    def check(self) -> None:
        """Raises AssertionError for what was read, changed, made or removed."""
        after = self._look()
        assert after == self._before, [
            name for name in {*after, *self._before} if after.get(name) != self._before.get(name)
        ]


class Racer:
    """``count``: exchanges so far."""

    def __init__(self, rootfs: Path, outside: Path, names: tuple[str, ...] = NAMES, rate: int = RATE) -> None:
        self._pause = _AT_ONCE * _IN_TURN / rate
        self._shared = mmap.mmap(-1, _COUNT.size)
        # In the tree: where that is a mount, names are exchanged in it alone.
        place = rootfs / "traps"
        before = {*rootfs.rglob("*")}
        place.mkdir()
        self._pairs: list[tuple[bytes, bytes]] = []
        for (index, name), (kind, make) in zip(enumerate(names), itertools.cycle(TRAPS.items())):
            (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(rootfs / name):
                (rootfs / name).touch() if name in FILES else (rootfs / name).mkdir()
            if name.startswith(_INCLUDED) and kind == "fifo":
                kind, make = "device", TRAPS["device"]
            trap = place / f"{index} {kind}"
            make(trap, outside)
            self._pairs.append((os.fsencode(rootfs / name), os.fsencode(trap)))
        owner = rootfs.stat()
        for path in {*rootfs.rglob("*")} - before:
            os.lchown(path, owner.st_uid, owner.st_gid)
        self._pid = 0

    @property
    def count(self) -> int:
        number: int = _COUNT.unpack(self._shared[:])[0]
        return number

    @contextmanager
    def running(self) -> Iterator[None]:
        """Meanwhile it runs; afterwards each name is where it was, or its trap is."""
        self._pid = os.fork()
        if self._pid == 0:
            try:
                end_with_parent()
                self._race()
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _race(self) -> None:
        """A few names at a time: a run that meets the one or the other still comes to its end now and then."""
        chance, done, until = random.Random(os.getpid()), 0, time.monotonic()

        def exchange(pairs: list[tuple[bytes, bytes]]) -> int:
            calls = [injection._libc.renameat2(-100, one, -100, other, _RENAME_EXCHANGE) for one, other in pairs]
            return calls.count(0)

        while True:
            chosen = chance.sample(self._pairs, min(_AT_ONCE, len(self._pairs)))
            # Not below one another: a name that goes away with its directory would not come back to its place.
            pairs = [pair for pair in chosen if not any(pair[0].startswith(other + b"/") for other, _ in chosen)]
            done += sum(exchange(pairs) for _ in range(_IN_TURN))
            is_trapped = chance.randrange(_TRAPPED) == 0
            done += exchange(pairs) if is_trapped else 0
            self._shared[:] = _COUNT.pack(done)
            until = max(until + self._pause, time.monotonic() - 1)
            time.sleep(max(0.0, until - time.monotonic()))
            done += exchange(pairs) if is_trapped else 0
