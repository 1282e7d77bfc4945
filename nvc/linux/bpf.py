"""Device programs of cgroup v2 through bpf(2): load, query, read back, attach, replace."""

from __future__ import annotations

import errno
import struct

from nvc.linux import const, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

_FIRST_ROOM = 64
_LARGEST_ROOM = 1 << 16
_LOG_BYTES = 1 << 16
_INSN = struct.calcsize(const.BPF_INSN)
_LD_IMM64 = 0x18
_BLINDING = 11


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    """One struct bpf_insn."""
    # The registers are bit fields: the first one lies in the low half on little-endian machines, as all of ours are.
    return struct.pack(const.BPF_INSN, code, src << 4 | dst, offset, imm)


class Program:
    """A loaded program. instructions: as the kernel holds them, fit to be loaded again; gpl: may call GPL helpers."""

    __slots__ = ("fd", "gpl", "id", "instructions", "maps")

    def __init__(self, fd: Fd, id: int, instructions: bytes, gpl: bool, maps: list[Fd]) -> None:
        self.fd, self.id, self.instructions, self.gpl = fd, id, instructions, gpl
        #: Keeps the maps that ``instructions`` name by descriptor open.
        self.maps = maps


class Unreadable(Exception):
    """The kernel does not return a program's instructions."""


def query(cgroup: Fd, *, effective: bool = False) -> tuple[list[int], int]:
    """(ids of the device programs attached to ``cgroup``, its attach flags BPF_F_ALLOW_*).

    effective: those that decide for its processes, ancestors' included. Raises SyscallError.
    """
    room = _FIRST_ROOM
    flags = const.BPF_F_QUERY_EFFECTIVE if effective else 0
    while True:
        ids = bytearray(4 * room)
        target = (cgroup.fileno(), const.BPF_CGROUP_DEVICE, flags, 0, syscalls.address(ids), room, 0)
        try:
            answer = syscalls.bpf(const.BPF_PROG_QUERY, struct.pack(const.BPF_ATTR_QUERY, *target), "BPF_PROG_QUERY")[1]
        except SyscallError as error:
            if error.errno != errno.ENOSPC or room >= _LARGEST_ROOM:
                raise
            room *= 8
            continue
        values = struct.unpack(const.BPF_ATTR_QUERY, answer)
        return list(struct.unpack_from(f"={values[5]}I", ids)), values[3]


def read(id: int) -> Program:
    """The loaded program ``id``. Raises SyscallError (ENOENT: it is gone), Unreadable."""
    number = syscalls.bpf(const.BPF_PROG_GET_FD_BY_ID, struct.pack("=III", id, 0, 0), "BPF_PROG_GET_FD_BY_ID")[0]
    fd = Fd(number, f"program {id}")
    offsets = const.BPF_PROG_INFO_OFFSETS
    info = _info(fd, {})
    length = struct.unpack_from("=I", info, offsets["xlated_prog_len"])[0]
    if not length:
        raise Unreadable("the kernel shows them to processes with more rights only")
    code = bytearray(length)
    info = _info(fd, {"xlated_prog_len": length, "xlated_prog_insns": syscalls.address(code)})
    shown = struct.unpack_from("=Q", info, offsets["xlated_prog_insns"])[0]
    if not shown or not any(code) or _blinded(code):
        # bpf_prog_get_info_by_fd(): a program with blinded constants is not dumped (the pointer comes back as 0), or,
        # for callers that may see kernel addresses, dumped with the blinding register, which no load accepts.
        raise Unreadable("its constants are blinded (net.core.bpf_jit_harden)")
    instructions, maps = _with_maps(bytes(code))
    gpl = bool(struct.unpack_from("=I", info, const.BPF_PROG_INFO_GPL_OFFSET)[0] & 1)
    return Program(fd, id, instructions, gpl, maps)


def load(instructions: bytes, *, gpl: bool = False, name: str = "nvc_devices") -> Fd:
    """Load a device program; EPERM is retried with a higher memory limit (before 5.11 programs count as locked).

    Raises SyscallError; the verifier's last words are among its arguments.
    """
    try:
        return _load(instructions, gpl, name)
    except SyscallError as error:
        if error.errno != errno.EPERM or not _raise_memory_limit():
            raise
    return _load(instructions, gpl, name)


def attach(cgroup: Fd, program: Fd, flags: int, replaced: Fd | None = None) -> None:
    """BPF_PROG_ATTACH; with ``replaced`` in its place, atomically. Raises SyscallError, EINVAL for that before 5.6."""
    other = 0
    if replaced is not None:
        if "BPF_F_REPLACE" in syscalls.unavailable:
            raise SyscallError(errno.EINVAL, "BPF_PROG_ATTACH")
        flags, other = flags | const.BPF_F_REPLACE, replaced.fileno()
    values = (cgroup.fileno(), program.fileno(), const.BPF_CGROUP_DEVICE, flags, other)
    syscalls.bpf(const.BPF_PROG_ATTACH, struct.pack(const.BPF_ATTR_ATTACH, *values), "BPF_PROG_ATTACH")


def detach(cgroup: Fd, program: Fd) -> None:
    """BPF_PROG_DETACH. Raises SyscallError, ENOENT when it is not attached."""
    values = (cgroup.fileno(), program.fileno(), const.BPF_CGROUP_DEVICE, 0, 0)
    syscalls.bpf(const.BPF_PROG_DETACH, struct.pack(const.BPF_ATTR_ATTACH, *values), "BPF_PROG_DETACH")


def _info(fd: Fd, members: dict[str, int]) -> bytes:
    info = bytearray(const.BPF_PROG_INFO_SIZE)
    for member, value in members.items():
        kind = "=Q" if member == "xlated_prog_insns" else "=I"
        struct.pack_into(kind, info, const.BPF_PROG_INFO_OFFSETS[member], value)
    attributes = struct.pack(const.BPF_ATTR_INFO, fd.fileno(), len(info), syscalls.address(info))
    syscalls.bpf(const.BPF_OBJ_GET_INFO_BY_FD, attributes, "BPF_OBJ_GET_INFO_BY_FD")
    return bytes(info)


def _blinded(code: bytes | bytearray) -> bool:
    """Whether the code uses BPF_REG_AX (include/linux/filter.h), which bpf_jit_blind_constants() works with."""
    return any(_BLINDING in (code[at + 1] & 15, code[at + 1] >> 4) for at in range(0, len(code), _INSN))


def _with_maps(code: bytes) -> tuple[bytes, list[Fd]]:
    """``code`` with map ids, which a dump holds, replaced by descriptors, which a load takes."""
    result, maps = bytearray(code), []
    for start in range(0, len(code), _INSN):
        operation, registers, offset, imm = struct.unpack_from(const.BPF_INSN, code, start)
        kind = registers >> 4
        if operation == _LD_IMM64 and kind in (const.BPF_PSEUDO_MAP_FD, const.BPF_PSEUDO_MAP_VALUE):
            attributes = struct.pack("=III", imm, 0, 0)
            number = syscalls.bpf(const.BPF_MAP_GET_FD_BY_ID, attributes, "BPF_MAP_GET_FD_BY_ID")[0]
            maps.append(Fd(number, f"map {imm}"))
            struct.pack_into(const.BPF_INSN, result, start, operation, registers, offset, number)
    return bytes(result), maps


def _load(instructions: bytes, gpl: bool, name: str) -> Fd:
    code = bytearray(instructions)
    # The licence decides which kernel helpers may be called. Our part calls none; the original keeps its licence.
    licence = bytearray(b"GPL\0" if gpl else b"Apache\0")

    def attributes(level: int, size: int, log: int) -> bytes:
        return struct.pack(
            const.BPF_ATTR_LOAD,
            const.BPF_PROG_TYPE_CGROUP_DEVICE,
            len(instructions) // _INSN,
            syscalls.address(code),
            syscalls.address(licence),
            level,
            size,
            log,
            0,
            0,
            name.encode()[:15],
        )

    try:
        return Fd(syscalls.bpf(const.BPF_PROG_LOAD, attributes(0, 0, 0), "BPF_PROG_LOAD")[0], name)
    except SyscallError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise
    # Refused by the verifier: load again with its log.
    log = bytearray(_LOG_BYTES)
    try:
        number = syscalls.bpf(const.BPF_PROG_LOAD, attributes(1, _LOG_BYTES, syscalls.address(log)), "BPF_PROG_LOAD")[0]
    except SyscallError as error:
        lines = log.partition(b"\0")[0].decode(errors="replace").strip().splitlines()
        words = next((line for line in reversed(lines) if not line.startswith("processed ")), "no verifier log")
        raise SyscallError(error.errno or errno.EINVAL, "BPF_PROG_LOAD", words) from error
    return Fd(number, name)


def _raise_memory_limit() -> bool:
    """Raise RLIMIT_MEMLOCK as far as allowed; whether it changed. Without CAP_SYS_RESOURCE the hard limit stays."""
    before = syscalls.prlimit(const.RLIMIT_MEMLOCK)
    for limit in (const.NO_LIMIT, before[1]):
        try:
            syscalls.prlimit(const.RLIMIT_MEMLOCK, (limit, limit))
        except SyscallError:
            continue
        break
    return syscalls.prlimit(const.RLIMIT_MEMLOCK) != before
