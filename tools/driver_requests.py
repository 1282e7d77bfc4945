"""Whether nvc/guard/requests.py names every request that the driver serves: ``python -m tools.driver_requests --help``.

Reads the open kernel modules of any number of releases: the ``case``s of nvidia_ioctl and RmIoctl with their numbers
(nv_escape.h, nv-ioctl-numbers.h, nv-ioctl-numa.h), and what uvm_ioctl and uvm_tools_ioctl route (uvm_ioctl.h,
uvm_linux_ioctl.h). A request without a row, or a row that no release has, ends it with 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nvc.guard.requests import ESCAPES, UVM, UVM_LAST

UNIX, OPEN = "src/nvidia/arch/nvalloc/unix", "kernel-open"
ESCAPE_NUMBERS = (
    f"{UNIX}/include/nv_escape.h",
    f"{OPEN}/common/inc/nv-ioctl-numbers.h",
    f"{OPEN}/common/inc/nv-ioctl-numa.h",
)
ESCAPE_CASES = (f"{UNIX}/src/escape.c", f"{OPEN}/nvidia/nv.c")
UVM_NUMBERS = (f"{OPEN}/nvidia-uvm/uvm_ioctl.h", f"{OPEN}/nvidia-uvm/uvm_linux_ioctl.h")
UVM_CASES = (f"{OPEN}/nvidia-uvm/uvm.c", f"{OPEN}/nvidia-uvm/uvm_tools.c")
TESTS = f"{OPEN}/nvidia-uvm/uvm_test_ioctl.h"
#: nv-ioctl-numbers.h: NV_IOCTL_BASE; uvm_test_ioctl.h: where the tests begin.
BASE, FIRST_TEST = 200, 200
_DEFINE = re.compile(r"^#define\s+((?:NV_ESC|UVM)_\w+)\s+(.+?)\s*(?:/[/*].*)?$", re.M)

Reader = Callable[[str], str]


def number_of(text: str) -> int | None:
    """Of ``0x2A``, ``(NV_IOCTL_BASE + 15)``, ``UVM_IOCTL_BASE(33)``; None for another form."""
    text = text.replace("NV_IOCTL_BASE", str(BASE)).replace("UVM_IOCTL_BASE", "").strip("() ")
    words = [word.strip() for word in text.split("+")]
    if not all(re.fullmatch(r"0x[0-9a-fA-F]+|\d+", word) for word in words):
        return None
    return sum(int(word, 0) for word in words)


def served(read: Reader, numbers: Sequence[str], cases: Sequence[str], pattern: str) -> set[int]:
    """The numbers of all requests that a release has a ``case`` for. Raises LookupError for one without a number."""
    named = {name: number_of(value) for path in numbers for name, value in _DEFINE.findall(read(path))}
    found = {name for path in cases for name in re.findall(pattern, read(path))}
    lost = sorted(name for name in found if named.get(name) is None)
    if lost:
        raise LookupError(f"no number for {', '.join(lost)}")
    return {number for name in found if (number := named[name]) is not None}


def problems(escapes: set[int], uvm: set[int], last_test: int) -> list[str]:
    """What the table lacks, or has too much, against the union of all releases."""
    found = []
    for what, there, rows in (("escape", escapes, ESCAPES), ("UVM", uvm, UVM)):
        numbers = {row[0] for row in rows}
        found += [f"{what} {number:#x} is served, and has no row" for number in sorted(there - numbers)]
        found += [f"{what} {number:#x} has a row, and no release serves it" for number in sorted(numbers - there)]
    if last_test > UVM_LAST:
        found.append(f"UVM's tests go up to {last_test}, and only those up to {UVM_LAST} are refused")
    return found


def _reader(repository: str, release: str) -> Reader:
    def read(path: str) -> str:
        if not repository:
            return Path(release, path).read_text() if Path(release, path).exists() else ""
        command = ["git", "-C", repository, "show", f"{release}:{path}"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    return read


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="driver_requests", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--git-dir", default="", help="a clone of the open kernel modules; without it names are folders"
    )
    parser.add_argument("releases", nargs="+", help="tags, at least one of each branch")
    given = parser.parse_args(arguments)
    escapes, uvm, last = set[int](), set[int](), 0
    for release in given.releases:
        read = _reader(given.git_dir, release)
        try:
            escapes |= served(read, ESCAPE_NUMBERS, ESCAPE_CASES, r"(?:case|==) (NV_ESC_\w+)")
            uvm |= served(read, UVM_NUMBERS, UVM_CASES, r"(?:UVM_ROUTE\w*\(|case )(UVM_(?!FD_|VA_)\w+)")
        except LookupError as error:
            print(f"driver_requests: {release}: {error.args[0]}: read the header that has it as well", file=sys.stderr)
            return 1
        last = max([last, *(FIRST_TEST + int(word) for word in re.findall(r"TEST_IOCTL_BASE\((\d+)\)", read(TESTS)))])
    if not escapes or not uvm:
        print("driver_requests: no request found in any release: are these tags or folders?", file=sys.stderr)
        return 1
    for line in (lines := problems(escapes, uvm, last)):
        print(line)
    print(f"{len(given.releases)} releases: {len(escapes)} escapes, {len(uvm)} requests of UVM, tests up to {last}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
