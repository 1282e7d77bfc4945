"""Print names.h: a perfect hash of the names for which lookups return a wrapper.

Arguments: files of rows, in the order of the enum.
"""

import re
import sys

BITS = 8


def hash_name(name, multiplier):
    """The hash of name_find in names.c, in 32 bits."""
    value = 0
    for character in name.encode():
        value = ((value ^ character) * multiplier) & 0xFFFFFFFF
    return value >> (32 - BITS)


def main():
    names = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            names += re.findall(r"^WRAP \([^,]+, (\w+),", file.read(), re.MULTILINE)
    names += ["dlsym", "dlvsym"]
    for multiplier in range(0x01000193, 0xFFFFFFFF, 2):
        slots = {hash_name(name, multiplier): index for index, name in enumerate(names)}
        if len(slots) == len(names):
            break
    else:
        sys.exit(f"names.py: {len(names)} names have no perfect hash of {BITS} bits; make BITS larger")
    print(f"#define NAME_MULTIPLIER {multiplier:#x}u")
    print(f"#define NAME_SHIFT {32 - BITS}")
    print(f"#define NAME_LONGEST {max(map(len, names))}")
    print(f"#define NAME_NONE {len(names)}")
    print(f"static const uint8_t NAME_SLOTS[{1 << BITS}] = {{")
    print(",\n".join(f"    {slots.get(slot, len(names))}" for slot in range(1 << BITS)))
    print("};")


if __name__ == "__main__":
    main()
