"""Every request that NVIDIA's drivers take of a container's programs, and what becomes of it under a guard. Pure.

Requests of the resource manager (/dev/nvidiactl, /dev/nvidiaN) and of UVM (/dev/nvidia-uvm, /dev/nvidia-uvm-tools) that
any release from 535 to 595 serves: the ``case``s of nvidia_ioctl (kernel-open/nvidia/nv.c) and RmIoctl
(arch/nvalloc/unix/src/escape.c), and what uvm_ioctl and uvm_tools_ioctl route; ``python -m tools.driver_requests``
compares all tags. A number that stands here nowhere is refused by each of these drivers, or, where it is announced, by
the guard. native/rm/abi_535.c and abi.c have the same rows; tests/contract/test_requests.py compares them, and
docs/reference/driver-requests.md has the table for readers.

The resource manager looks at the low byte and the size of a request, never at its type byte or direction; UVM compares
all 32 bits. Of other nodes: nvidia-caps, nvidia-caps-imex-channels take no request; nvidia-modeset and DRM nodes are
not covered (guard-coverage.md).
"""

from __future__ import annotations

#: What becomes of a request. PLAIN: it goes to the driver unannounced: it takes no memory and no compute by itself, has
#: no effect beyond its caller's own objects, and needs no privilege; or a rule named in its reason covers what it does.
#: HANDLED: announced, and decided by native/rm. ANSWERED: announced, success is returned, nothing is done. REFUSED.
PLAIN, HANDLED, ANSWERED, REFUSED = "plain", "handled", "answered", "refused"

_QUESTION = "a question"
_REVERSE = "undoes another one of these"
_LEDGER = "makes, shares or ends objects: by the ledger"
_ADDRESSES_OF_OWN = "in the tenant's own address spaces, within the memory; page tables: rule M7"
_CALLERS = "concerns the caller's own channels, events, mappings or descriptors"
#: Number (NV_ESC_*: the low byte), name, sizes of its struct in bytes (0: an array, or any), what becomes of it, why.
ESCAPES: tuple[tuple[int, str, tuple[int, ...], str, str], ...] = (
    (0x27, "RM_ALLOC_MEMORY", (56,), HANDLED, _LEDGER),
    (0x28, "RM_ALLOC_OBJECT", (20,), REFUSED, "makes objects without params; ALLOC does all of it, nothing uses this"),
    (0x29, "RM_FREE", (16,), HANDLED, _LEDGER),
    (0x2A, "RM_CONTROL", (32,), HANDLED, "by the table of controls"),
    (0x2B, "RM_ALLOC", (32, 48), HANDLED, "by the table of classes"),
    (0x34, "RM_DUP_OBJECT", (28,), HANDLED, _LEDGER),
    (0x35, "RM_SHARE", (24,), HANDLED, _LEDGER),
    (0x39, "RM_I2C_ACCESS", (32,), REFUSED, "the board's buses: device-wide"),
    (0x41, "RM_IDLE_CHANNELS", (56,), HANDLED, "waits with the locks of GPUs: 100 ms at most"),
    (0x4A, "RM_VID_HEAP_CONTROL", (184,), HANDLED, _LEDGER),
    (0x4D, "RM_ACCESS_REGISTRY", (72,), REFUSED, "the driver's settings, of all clients"),
    (
        0x4E,
        "RM_MAP_MEMORY",
        (56,),
        PLAIN,
        "memory that is an object already, for the CPU; the mapping must be the caller's",
    ),
    (0x4F, "RM_UNMAP_MEMORY", (32,), PLAIN, _REVERSE),
    (0x52, "RM_GET_EVENT_DATA", (16,), PLAIN, _CALLERS),
    (0x54, "RM_ALLOC_CONTEXT_DMA2", (56,), PLAIN, "a name for memory that is an object; it goes with it"),
    (0x57, "RM_MAP_MEMORY_DMA", (56, 64), HANDLED, _ADDRESSES_OF_OWN),
    (0x58, "RM_UNMAP_MEMORY_DMA", (40, 48), HANDLED, _ADDRESSES_OF_OWN),
    (0x59, "RM_BIND_CONTEXT_DMA", (16,), PLAIN, _CALLERS),
    (0x5E, "RM_UPDATE_DEVICE_MAPPING_INFO", (40,), PLAIN, _CALLERS),
    (0x5F, "RM_LOCKLESS_DIAGNOSTIC", (4024, 15412), REFUSED, "the driver's log, of all clients; NVLOG_CTRL before 545"),
    (0xC8, "CARD_INFO", (0,), PLAIN, _QUESTION),
    (0xC9, "REGISTER_FD", (4,), PLAIN, "binds a GPU's file to the caller's control file"),
    (0xCE, "ALLOC_OS_EVENT", (16,), PLAIN, _CALLERS),
    (0xCF, "FREE_OS_EVENT", (16,), PLAIN, _REVERSE),
    (0xD1, "STATUS_CODE", (12,), PLAIN, _QUESTION),
    (0xD2, "CHECK_VERSION_STR", (72,), PLAIN, _QUESTION),
    (0xD3, "IOCTL_XFER_CMD", (16,), REFUSED, "any of these, wrapped"),
    (0xD4, "ATTACH_GPUS_TO_FD", (0,), PLAIN, "keeps GPUs open while the file is; CUDA and nvidia-smi do so"),
    (0xD5, "QUERY_DEVICE_INTR", (8,), PLAIN, "reads one register: whether an interrupt is pending"),
    (0xD6, "SYS_PARAMS", (8,), ANSWERED, "the first value counts for every program until the driver is loaded again"),
    (0xD7, "NUMA_INFO", (560,), PLAIN, _QUESTION),
    (0xD8, "SET_NUMA_STATUS", (4,), REFUSED, "puts a GPU's memory on and off line"),
    (0xD9, "EXPORT_TO_DMABUF_FD", (2600, 2608), PLAIN, "holds on to an object's memory: retained memory is charged on"),
    (0xDA, "WAIT_OPEN_COMPLETE", (8,), PLAIN, _QUESTION),
)

_OWN = "of the caller's own address space"
_EXTERNAL = "an object's memory at a GPU address: page tables, rule M7; retained memory is charged on"
_ADDRESSES = "addresses without memory: page tables, rule M7"
_PEERS = "between GPUs that the caller registered"
_EVENTS = "events of an address space; the caller has its file"
_MANAGED = "managed memory, which is charged where it is mapped"
#: Number, name, what becomes of it, why.
UVM: tuple[tuple[int, str, str, str], ...] = (
    (
        0x30000001,
        "INITIALIZE",
        PLAIN,
        "flag 2 lets its ranges outlive a process: M8, asked about when something is mapped",
    ),
    (0x30000002, "DEINITIALIZE", PLAIN, _OWN),
    (23, "CREATE_RANGE_GROUP", PLAIN, _OWN),
    (24, "DESTROY_RANGE_GROUP", PLAIN, _OWN),
    (25, "REGISTER_GPU_VASPACE", PLAIN, _OWN),
    (26, "UNREGISTER_GPU_VASPACE", PLAIN, _OWN),
    (27, "REGISTER_CHANNEL", PLAIN, "holds on to a channel's context buffers: not covered"),
    (28, "UNREGISTER_CHANNEL", PLAIN, _OWN),
    (29, "ENABLE_PEER_ACCESS", PLAIN, _PEERS),
    (30, "DISABLE_PEER_ACCESS", PLAIN, _PEERS),
    (31, "SET_RANGE_GROUP", PLAIN, _OWN),
    (33, "MAP_EXTERNAL_ALLOCATION", PLAIN, _EXTERNAL),
    (34, "FREE", PLAIN, _OWN),
    (37, "REGISTER_GPU", PLAIN, "UVM's own state of a GPU, once for all programs"),
    (38, "UNREGISTER_GPU", PLAIN, _OWN),
    (39, "PAGEABLE_MEM_ACCESS", PLAIN, _QUESTION),
    (40, "PREVENT_MIGRATION_RANGE_GROUPS", PLAIN, _MANAGED),
    (41, "ALLOW_MIGRATION_RANGE_GROUPS", PLAIN, _MANAGED),
    (42, "SET_PREFERRED_LOCATION", PLAIN, _MANAGED),
    (43, "UNSET_PREFERRED_LOCATION", PLAIN, _MANAGED),
    (44, "ENABLE_READ_DUPLICATION", PLAIN, _MANAGED),
    (45, "DISABLE_READ_DUPLICATION", PLAIN, _MANAGED),
    (46, "SET_ACCESSED_BY", PLAIN, _MANAGED),
    (47, "UNSET_ACCESSED_BY", PLAIN, _MANAGED),
    (51, "MIGRATE", PLAIN, "managed memory, which is charged where it is mapped; with HMM or ATS any: M9, not covered"),
    (53, "MIGRATE_RANGE_GROUP", PLAIN, _MANAGED),
    (54, "ENABLE_SYSTEM_WIDE_ATOMICS", PLAIN, _OWN),
    (55, "DISABLE_SYSTEM_WIDE_ATOMICS", PLAIN, _OWN),
    (56, "TOOLS_INIT_EVENT_TRACKER", PLAIN, _EVENTS),
    (57, "TOOLS_SET_NOTIFICATION_THRESHOLD", PLAIN, _EVENTS),
    (58, "TOOLS_EVENT_QUEUE_ENABLE_EVENTS", PLAIN, _EVENTS),
    (59, "TOOLS_EVENT_QUEUE_DISABLE_EVENTS", PLAIN, _EVENTS),
    (60, "TOOLS_ENABLE_COUNTERS", PLAIN, _EVENTS),
    (61, "TOOLS_DISABLE_COUNTERS", PLAIN, _EVENTS),
    (62, "TOOLS_READ_PROCESS_MEMORY", PLAIN, _OWN),
    (63, "TOOLS_WRITE_PROCESS_MEMORY", PLAIN, _OWN),
    (64, "TOOLS_GET_PROCESSOR_UUID_TABLE", PLAIN, _QUESTION),
    (65, "MAP_DYNAMIC_PARALLELISM_REGION", PLAIN, _ADDRESSES),
    (66, "UNMAP_EXTERNAL", PLAIN, _OWN),
    (67, "TOOLS_FLUSH_EVENTS", PLAIN, _OWN),
    (
        68,
        "ALLOC_SEMAPHORE_POOL",
        PLAIN,
        "system memory, and page tables; video memory with confidential computing alone",
    ),
    (69, "CLEAN_UP_ZOMBIE_RESOURCES", PLAIN, _OWN),
    (70, "PAGEABLE_MEM_ACCESS_ON_GPU", PLAIN, _QUESTION),
    (71, "POPULATE_PAGEABLE", PLAIN, "the caller's system memory"),
    (72, "VALIDATE_VA_RANGE", PLAIN, _QUESTION),
    (73, "CREATE_EXTERNAL_RANGE", PLAIN, _OWN),
    (74, "MAP_EXTERNAL_SPARSE", PLAIN, _ADDRESSES),
    (75, "MM_INITIALIZE", PLAIN, "ties a second file to the caller's address space"),
    (76, "TOOLS_INIT_EVENT_TRACKER_V2", PLAIN, _EVENTS),
    (77, "TOOLS_GET_PROCESSOR_UUID_TABLE_V2", PLAIN, _QUESTION),
    (78, "ALLOC_DEVICE_P2P", PLAIN, _EXTERNAL),
    (79, "CLEAR_ALL_ACCESS_COUNTERS", ANSWERED, "counters of the whole GPU, by which UVM moves memory"),
    (80, "DISCARD", PLAIN, _MANAGED),
)
#: UVM's numbers from the first to the last are refused where no row names them: tests of the driver's (200 and above,
#: served with uvm_enable_builtin_tests=1), and what no release serves. Below the first none is announced: no release
#: serves them, and FIBMAP, FIGETBSZ and SCSI's requests have the same 32 bits.
UVM_FIRST, UVM_LAST = 8, 511


def announced_escapes() -> list[tuple[int, int]]:
    """(low byte, size) of the resource manager's requests that are announced, in the table's order."""
    return [(number, size) for number, _, sizes, what, _ in ESCAPES if what != PLAIN for size in sizes]


def announced_uvm() -> list[int]:
    """UVM's requests that are announced, all 32 bits of each, ascending."""
    plain = {number for number, _, what, _ in UVM if what == PLAIN}
    return [number for number in range(UVM_FIRST, UVM_LAST + 1) if number not in plain]
