"""Which structs of the driver's interface hold pointers or descriptors: ``python -m tools.driver_pointers --help``.

Reads the open kernel modules of one release of each branch, and writes what native/test/test_rm_pointers.c compares the
rows of native/rm with (native/test/rm_driver.h): for each control, class and escape the size of its struct, where
pointers and descriptors lie in it, and how much the driver moves through each pointer. Nothing but numbers is kept.

Layouts are the compiler's: one program that includes the driver's headers is compiled, and its DWARF is read. Which
struct belongs to which number is what the driver itself goes by: its tables of exported controls
(generated/g_*_nvoc.c), of deprecated ones (rmapi_deprecated_control.c), of classes (resource_list.h), and the cases of
escape.c, nv.c and embedded_param_copy.c.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.struct_layout import Layouts, Member, Unreadable

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "native/test/rm_driver.h"
RMAPI = "src/nvidia/src/kernel/rmapi"
DEPRECATED = "src/nvidia/interface/deprecated/rmapi_deprecated_control.c"
SDK, UNIX = "src/common/sdk/nvidia/inc", "src/nvidia/arch/nvalloc/unix"
NV_C, OPEN = "kernel-open/nvidia/nv.c", "kernel-open/common/inc"
#: What of a release is read.
PARTS = (SDK, UNIX, OPEN, NV_C, "src/nvidia/generated", RMAPI, DEPRECATED)
#: More than any row of ours could have; what lies behind them does not matter, for no such call is made.
MOST_POINTERS = 4
#: A number that is a descriptor of the caller's, and a 64-bit integer that is a pointer: by their names.
DESCRIPTOR = re.compile(r"(^|\.)(fd|\w+_fd|\w+[a-z]Fd|\w*[dD]escriptor)$")
POINTER_NAME = re.compile(r"(^|\.)p[A-Z]\w*$")
#: Deprecated controls whose converter does without the macro: the pointers' count, bytes of an element.
BY_HAND = {"NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION": ("sizeOfStrings", 1)}


@dataclass(frozen=True)
class Pointer:
    at: int
    count_at: int | None = None  #: where its count of elements lies
    element: int = 0  #: bytes; 0: how much is moved is not told
    square: bool = False  #: count times count of them


@dataclass(frozen=True)
class Params:
    size: int
    pointers: tuple[Pointer, ...] = ()
    descriptors: tuple[int, ...] = ()
    unsized: bool = False  #: the driver reads all of it, whatever size it is told


#: Something that leads elsewhere, and that no row of ours is about.
LEADS = Params(-1)
Table = dict[int, Params]
#: Of controls, classes and escapes.
Facts = tuple[Table, Table, Table]
#: From which branch to which a number's struct is this one.
Spans = list[tuple[int, int, Params]]
#: Member -> what counts its elements, what an element is, whether it is a square.
Lists = dict[str, tuple[str, str, bool]]
#: Control -> its struct, and what its members lead to.
Leading = dict[str, tuple[str, Lists]]


class Release:
    """One release's sources, unpacked in ``tree``. Raises Unreadable where they are not as they were."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.exported = self._exported()
        self.embedded = self._embedded()
        self.deprecated = self._deprecated()
        self.early = self._early()
        self.classes = self._classes()
        self.escapes = self._escapes()
        empty = [name for name, table in vars(self).items() if table == {}]
        if empty:
            raise Unreadable(f"{tree}: the driver's tables have another form: found nothing {', '.join(empty)}")
        names = {*self.embedded, *self.deprecated, *self.early, *self.classes, *self.escapes}
        self.layouts = Layouts(self.tree, (SDK, f"{UNIX}/include", OPEN), sorted(names))

    def facts(self) -> Facts:
        number = self.layouts.number
        classes = {number(name): self._params(kind) for name, kind in self.classes.items() if name in self.layouts}
        escapes = {
            number(name): self._params(kind) for name, kind in self.escapes.items() if kind in self.layouts.sizes
        }
        return self._controls(), classes, escapes

    def _controls(self) -> Table:
        number, controls = self.layouts.number, Table()
        for command, kind in self.exported.items():
            controls[command] = self._params(kind)
        for name, (kind, lists) in {**self.embedded, **self.deprecated}.items():
            if kind in self.layouts.sizes:
                controls[number(name)] = self._with_lists(kind, lists)
        for name in self.deprecated:
            controls[number(name)] = replace(controls[number(name)], unsized=True)
        for name, kind in self.early.items():
            controls[number(name)] = replace(self._params(kind), unsized=True)
        return controls

    def _params(self, kind: str) -> Params:
        if not kind:
            return Params(0)
        members = list(self.layouts.members(kind))
        pointers = {member.at for member in members if is_pointer(member)}
        descriptors = {m.at for m in members if not is_pointer(m) and m.size >= 4 and DESCRIPTOR.search(m.name)}
        found = tuple(Pointer(at) for at in sorted(pointers)[:MOST_POINTERS])
        return Params(self.layouts.sizes[kind], found, tuple(sorted(descriptors)))

    def _with_lists(self, kind: str, lists: Lists) -> Params:
        at = {member.name: member.at for member in self.layouts.members(kind)}
        told = {}
        for name, (count, element, square) in lists.items():
            size = int(element, 0) if element.isdecimal() else self.layouts.sizes[element]
            told[at[name]] = Pointer(at[name], at[count], size, square)
        params = self._params(kind)
        return replace(params, pointers=tuple(told.get(pointer.at, pointer) for pointer in params.pointers))

    def _text(self, name: str) -> str:
        return (self.tree / name).read_text()

    def _exported(self) -> dict[int, str]:
        row = re.compile(r"/\*methodId=\*/\s*(0x[0-9a-f]+)u?,\s*/\*paramSize=\*/\s*(?:sizeof\s*\(([^)]*)\)|0)")
        paths = (self.tree / "src/nvidia/generated").glob("g_*_nvoc.c")
        return {int(found[1], 16): found[2] or "" for path in paths for found in row.finditer(path.read_text())}

    def _embedded(self) -> Leading:
        text = self._text(f"{RMAPI}/embedded_param_copy.c").partition("NV_STATUS embeddedParamCopyIn")[2]
        found = Leading()
        for case in re.split(r"\n\s*case\s+", text.partition("NV_STATUS embeddedParamCopyOut")[0])[1:]:
            kind = re.search(r"CHECK_PARAMS_OR_RETURN\(\w+, (\w+)\)", case)
            if kind is None:
                raise Unreadable(f"embedded_param_copy.c: no CHECK_PARAMS_OR_RETURN in case {case.split(':')[0]}")
            lists = Lists()
            for words in calls(case, "RMAPI_PARAM_COPY_INIT"):
                pointer, count, element = (words[index].split("->")[-1].strip() for index in (2, 3, 4))
                square = "numEntries" in count
                count = "gpuCount" if square else count
                if re.search(rf"->{count}\b", case):
                    lists[pointer] = (count, element.removeprefix("sizeof(").removesuffix(")"), square)
            found[case.split(":")[0]] = (kind[1], lists)
        return found

    def _deprecated(self) -> Leading:
        text, found = self._text(DEPRECATED), Leading()
        for name in re.findall(r"\{\s*(NV\w+),\s*V\d_CONVERTER", text):
            body = re.split(rf"_CONVERTER\(_{name}\)\s*\n\(", text)[-1].partition("\n}\n")[0]
            for words in (*calls(body, "CONVERT_TO_V2"), *calls(body, "CONVERT_TO_V2_EX")):
                is_count, element = words[6].split()[0] == "NV_TRUE", words[7].split()[-1]
                found[name] = (words[1], {words[3]: (words[5], element if is_count else "1", False)})
            plain = re.search(r"CTRL_PARAMS_TOKEN_INIT\(\w+, (\w+),|(\w+) \*pParams\b", body)
            if name not in found and plain is not None:
                found[name] = (plain[1] or plain[2], {})
            if name not in found:
                raise Unreadable(f"{DEPRECATED}: the params of {name} are not told")
            if name in BY_HAND:
                count, element_size = BY_HAND[name]
                strings = ("pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer")
                found[name] = (found[name][0], {string: (count, str(element_size), False) for string in strings})
        return found

    def _classes(self) -> dict[str, str]:
        text = self._text(f"{RMAPI}/resource_list.h")
        row = re.compile(r"External Class\s*\*/\s*(\w+),.*?Alloc Param Info\s*\*/\s*\w+(?:\(\s*(\w+)\s*\))?", re.DOTALL)
        return {found[1]: found[2] or "" for found in row.finditer(text)}

    def _escapes(self) -> dict[str, str]:
        found = dict[str, str]()
        for text in (self._text(f"{UNIX}/src/escape.c"), self._text(f"{UNIX}/src/osapi.c"), self._text(NV_C)):
            for case in re.split(r"\n\s*case\s+(?=NV_ESC_)", text)[1:]:
                kind = re.search(r"\b(NVOS\w*|NV_\w+_PARAMS|nv_ioctl_\w+)\s*\*", case[:400])
                if kind is not None:
                    found.setdefault(case.split(":")[0], kind[1])
        found["NV_ESC_RM_ALLOC"] = "NVOS64_PARAMETERS"  # and NVOS21_PARAMETERS, the same without the second pointer
        return found

    def _early(self) -> dict[str, str]:
        """Controls that escape.c looks into before anything looks at their size."""
        text = self._text(f"{UNIX}/src/escape.c").partition("RmGetDeviceFd")[2].partition("\n}\n")[0]
        return dict(re.findall(r"case (\w+):\s*paramSize = sizeof\((\w+)\)", text))


def is_pointer(member: Member) -> bool:
    return member.is_pointer or (member.size == 8 and POINTER_NAME.search(member.name) is not None)


def calls(text: str, name: str) -> Iterator[list[str]]:
    """The arguments of each call of a macro."""
    for found in re.finditer(rf"\b{name}\s*\(", text):
        words, depth = [""], 0
        for letter in re.sub(r"//[^\n]*", "", text[found.end() :]):
            if letter == ")" and depth == 0:
                break
            depth += (letter in "({") - (letter in ")}")
            if letter == "," and depth == 0:
                words.append("")
            else:
                words[-1] += letter
        yield [word.strip() for word in words]


def reduced(facts: Facts) -> Facts:
    """What the rows of native/rm can be compared with. Of what has none it is enough whether it leads elsewhere."""
    text = "".join(path.read_text() for path in (ROOT / "native/rm").glob("abi*"))
    names = dict(re.findall(r"#define (\w+) (0x[0-9a-f]+)u\n", (ROOT / "native/rm/nv_numbers.h").read_text()))
    rows = [
        (names.get(number, number), what, size)
        for number, what, size in re.findall(r"\{\s*(\w+), (CONTROL|CLASS)_\w+,\s*(\d+)", text)
    ]
    controls, classes = ({int(n, 16) for n, what, _ in rows if what == kind} for kind in ("CONTROL", "CLASS"))
    sized = {int(number, 16) for number, what, size in rows if what == "CONTROL" and size != "0"}

    def kept(table: Table, known: set[int], wanted: set[int]) -> Table:
        return {n: p if n in known else LEADS for n, p in table.items() if leads(p) or n in wanted}

    return kept(facts[0], controls, sized), kept(facts[1], classes, classes), facts[2]


def leads(params: Params) -> bool:
    return bool(params.pointers or params.descriptors)


def gather(releases: Mapping[str, Facts]) -> list[dict[int, Spans]]:
    """For controls, classes and escapes: what each number's struct is, from which branch to which.

    Raises Unreadable where two releases of one branch differ.
    """
    branches: dict[int, tuple[str, Facts]] = {}
    for tag, facts in releases.items():
        other, known = branches.setdefault(int(tag.split(".")[0]), (tag, facts))
        pairs = zip(known, facts, strict=True)
        numbers = {n for one, two in pairs for n in one.keys() | two.keys() if one.get(n) != two.get(n)}
        if numbers:
            raise Unreadable(f"{tag} is not as {other}, of the same branch: {', '.join(map(hex, sorted(numbers)))}")
    tables: list[dict[int, Spans]] = [{}, {}, {}]
    for branch, (_, facts) in sorted(branches.items()):
        before = max((other for other in branches if other < branch), default=0)
        for table, known_now in zip(tables, facts, strict=True):
            for number, params in known_now.items():
                spans = table.setdefault(number, [])
                since = spans.pop()[0] if spans and spans[-1][1:] == (before, params) else branch
                spans.append((since, branch, params))
    return tables


def rendered(tags: Sequence[str], tables: Sequence[Mapping[int, Spans]]) -> str:
    text = "/* Facts about structs of the open kernel modules, by tools/driver_pointers.py, from the releases\n"
    text += wrapped(tags, " *").rstrip("\n") + " */\n"
    for name, table in zip(("controls", "classes", "escapes"), tables, strict=True):
        rows = [row(number, *span) for number, spans in sorted(table.items()) for span in spans]
        text += f"\nstatic const struct driver_params driver_{name}[] = {{\n{wrapped(rows, '   ')}}};\n"
    return text


def wrapped(words: Sequence[str], margin: str) -> str:
    lines = [margin]
    for word in words:
        lines += [margin] if len(lines[-1]) + len(word) > 118 else []
        lines[-1] += f" {word}"
    return "\n".join(lines) + "\n"


def row(number: int, since: int, until: int, params: Params) -> str:
    """In the macros of native/test/driver_facts.h."""
    begin = f"{number:#x}, {since}, {until}"
    if params == LEADS:
        return f"LEADS ({begin}),"
    if not leads(params):
        return f"PLAIN ({begin}, {params.size}),"
    pointers = [
        f"{{{p.at}, {'ANY' if p.count_at is None else p.count_at}, {p.element}, {int(p.square)}}}"
        for p in params.pointers
    ]
    descriptor = str(params.descriptors[0]) if params.descriptors else "NONE"
    words = [begin, str(params.size), str(int(params.unsized)), descriptor, str(len(pointers)), *(pointers or ["{0}"])]
    return f"FULL ({', '.join(words)}),"


def read(git: Path | None, releases: Sequence[str]) -> dict[str, Facts]:
    """git: a repository whose tags they are; None: folders whose names they are."""
    facts = {}
    for release in releases:
        with tempfile.TemporaryDirectory() as scratch:
            if git is not None:
                archive = ["git", f"--git-dir={git}", "archive", release, *PARTS]
                packed = subprocess.run(archive, check=False, capture_output=True)
                if packed.returncode != 0:
                    raise Unreadable(f"{release}: not a release in {git}: {packed.stderr.decode(errors='replace')}")
                subprocess.run(["tar", "-x", "-C", scratch], input=packed.stdout, check=True)
            tree = Path(scratch) if git is not None else Path(release)
            facts[Path(release).name] = reduced(Release(tree).facts())
    return facts


def compare(facts: Path) -> int:
    """Run the test that compares our rows with these facts; its exit status."""
    native, sources = ROOT / "native", sorted((ROOT / "native/rm").glob("*.c"))
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "test"
        test = [native / "test/test_rm_pointers.c", *(native / "test").glob("rm_fake*.c")]
        command = ["cc", "-std=c11", "-D_GNU_SOURCE", f"-I{native}", f'-DDRIVER_FACTS="{facts}"', "-o", str(program)]
        subprocess.run([*command, *map(str, [*test, *sources])], check=True, capture_output=True)
        return subprocess.run([str(program)], check=False).returncode


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="driver_pointers", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--git-dir", type=Path, help="repository of the open kernel modules: RELEASE is a tag of it")
    parser.add_argument("--write", action="store_true", help=f"write {FACTS.relative_to(ROOT)}")
    parser.add_argument("release", nargs="+", help="tag, or folder named after the release: 580.142")
    options = parser.parse_args(argv)
    try:
        text = rendered(options.release, gather(read(options.git_dir, options.release)))
        if options.write:
            FACTS.write_text(text)
        with tempfile.NamedTemporaryFile("w", suffix=".h") as scratch:
            scratch.write(text)
            scratch.flush()
            return compare(Path(scratch.name))
    except (Unreadable, OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace")
        print(f"driver_pointers: {error} {said}".strip(), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
