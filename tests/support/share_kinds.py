"""What tests of a share's memory go by on a real GPU, in tests/gpu/enforce."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30
#: CUDA_ERROR_OUT_OF_MEMORY.
OUT_OF_MEMORY = 2
#: Kind of quota.c -> limit in GiB, and what may be left at the limit, in MiB: the smallest step of its fill and what
#: the driver rounds up to.
KINDS = {
    "malloc": (10, 2),
    "create": (10, 2),
    "async": (10, 64),
    "pool": (10, 64),
    "array": (4, 4),
    "mipmap": (4, 8),
    "array3d": (4, 8),
    "pitch": (4, 4),
    "graph": (4, 64),
    "managed": (4, 4),
}
#: Beside what the share counts the driver uses memory for channels and page tables, which no ioctl of the process asks
#: for: MiB a process. Seen on an H200 with driver 580: 7 for one that holds 10 GiB, 13 with managed memory, and 32 for
#: eight together.
UNCOUNTED = 64
#: MiB by which nvidia-smi's sum moves by itself.
STILL = 4
