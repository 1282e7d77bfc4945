"""Layouts of C structs, and values of macros, as the compiler has them: from the DWARF of a program made for that."""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

#: Qualifiers: the type is the one that they name.
_TRANSPARENT = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
#: A pointer in a struct that both 32-bit and 64-bit programs use (nvtypes.h).
_POINTER_TYPE = "NvP64"


class Unreadable(RuntimeError):
    """The sources are not what was expected; the text says what."""


@dataclass(frozen=True)
class Member:
    """A scalar, or the first element of an array of scalars that are no pointers."""

    name: str  #: from the outermost struct on: "data.AllocSize.address"
    at: int
    size: int
    is_pointer: bool


class Layouts:
    """Of every struct that the headers below ``folders`` of a tree define.

    names: macros whose values are wanted; those that the headers do not define are left out. Raises Unreadable when
    the headers do not compile.
    """

    def __init__(self, tree: Path, folders: Sequence[str], names: Sequence[str]) -> None:
        self.sizes: dict[str, int] = {}
        self._values: dict[str, int] = {}
        self._types: dict[str, Any] = {}
        self._read(self._compiled(tree, folders, names))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def number(self, name: str) -> int:
        """The value of a macro. Raises Unreadable."""
        if name not in self._values:
            raise Unreadable(f"no header defines {name}")
        return self._values[name]

    def members(self, name: str) -> Iterator[Member]:
        """The scalars in a type; one of a union's after the other. Raises Unreadable."""
        if name not in self._types:
            raise Unreadable(f"no header defines the struct {name}")
        yield from _members(self._types[name], Member("", 0, 0, False))

    @staticmethod
    def _compiled(tree: Path, folders: Sequence[str], names: Sequence[str]) -> bytes:
        first = tree / folders[0]
        headers = ["nvtypes.h", "nvos.h", "nv-ioctl.h", "nv-ioctl-numbers.h", "nv-ioctl-numa.h", "nv_escape.h"]
        headers += ["nv-unix-nvos-params-wrappers.h"]
        for folder in ("alloc", "class", "ctrl"):
            headers += sorted(str(path.relative_to(first)) for path in (first / folder).rglob("*.h"))
        lines = [f'#include "{header}"' for header in headers]
        lines += [f"#ifdef {name}\nenum {{ VALUE_OF_{name} = {name} }};\n#endif" for name in names]
        with tempfile.TemporaryDirectory() as scratch:
            source, program = Path(scratch) / "all.c", Path(scratch) / "all.o"
            source.write_text("\n".join(lines) + "\n")
            paths = [f"-I{tree / folder}" for folder in folders]
            command = ["cc", "-w", "-g", "-fno-eliminate-unused-debug-types", "-DNVRM", *paths, "-c", "-o"]
            done = subprocess.run([*command, str(program), str(source)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unreadable(f"the headers do not compile: {done.stderr[:2000]}")
            return program.read_bytes()

    def _read(self, program: bytes) -> None:
        for unit in ELFFile(io.BytesIO(program)).get_dwarf_info().iter_CUs():
            for die in unit.get_top_DIE().iter_children():
                if die.tag == "DW_TAG_typedef" and (size := _size(die)) is not None:
                    self._types[_name(die)] = die
                    self.sizes[_name(die)] = size
                elif die.tag == "DW_TAG_enumeration_type":
                    for value in die.iter_children():
                        if _name(value).startswith("VALUE_OF_"):
                            number = value.attributes["DW_AT_const_value"].value & 0xFFFFFFFF
                            self._values[_name(value).removeprefix("VALUE_OF_")] = number


def _name(die: Any) -> str:
    name = die.attributes.get("DW_AT_name")
    return str(name.value.decode()) if name is not None else ""


def _type(die: Any) -> Any:
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def _elements(die: Any) -> int:
    count = 1
    for part in die.iter_children():
        if part.tag == "DW_TAG_subrange_type":
            bound = part.attributes.get("DW_AT_upper_bound")
            count *= bound.value + 1 if bound is not None else 0
    return count


def _size(die: Any) -> int | None:
    """Bytes; None for what has no size (void, functions)."""
    if die is None:
        return None
    if "DW_AT_byte_size" in die.attributes:
        return int(die.attributes["DW_AT_byte_size"].value)
    inner = _size(_type(die)) if die.tag in (*_TRANSPARENT, "DW_TAG_array_type") else None
    return inner * _elements(die) if inner is not None and die.tag == "DW_TAG_array_type" else inner


def _members(die: Any, place: Member) -> Iterator[Member]:
    inner = _type(die)
    if (die.tag == "DW_TAG_typedef" and _name(die) == _POINTER_TYPE) or die.tag == "DW_TAG_pointer_type":
        yield replace(place, size=8, is_pointer=True)
    elif die.tag in _TRANSPARENT and inner is not None:
        yield from _members(inner, place)
    elif die.tag in ("DW_TAG_structure_type", "DW_TAG_union_type"):
        for part in die.iter_children():
            if part.tag == "DW_TAG_member":
                offset = part.attributes.get("DW_AT_data_member_location")
                at = place.at + (offset.value if offset is not None else 0)
                yield from _members(_type(part), Member(f"{place.name}.{_name(part)}".lstrip("."), at, 0, False))
    elif die.tag == "DW_TAG_array_type":
        yield from _array(die, inner, place)
    elif (size := _size(die)) is not None:
        yield replace(place, size=size)


def _array(die: Any, inner: Any, place: Member) -> Iterator[Member]:
    first, step = list(_members(inner, place)), _size(inner) or 0
    for index in range(_elements(die) if any(member.is_pointer for member in first) else 1):
        yield from (replace(member, at=member.at + index * step) for member in first)
