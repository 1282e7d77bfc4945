"""Allows device nodes in a cgroup v2 device filter that a runtime attached.

The filter is a BPF program whose answer is yes or no. It is replaced by one that answers yes to our nodes and runs
the original otherwise. Every attached program is replaced, since all of them must say yes. There is no instant
without a filter: all new programs are loaded before the first is attached, BPF_F_REPLACE swaps atomically, and
without it (before 5.6) the old one is detached after the new one is attached, while both decide.

**A cgroup without a program of its own is left alone.** At its level everything is allowed already, so there is
nothing to add; a program of ours could only take away what the runtime granted (a privileged container's devices,
/dev/null). The reference tries to load one there and fails (its r0 is not set). A program that we build always has
the original behind it, so it never decides by accident. One exception: crun under systemd puts the container into a
child ("container") of the scope that holds the filter; there the scope is edited.
"""

from __future__ import annotations

import errno
import os
import struct

from nvc.base.errors import MountError
from nvc.base.undo import Undo
from nvc.linux import bpf, const, syscalls
from nvc.linux.bpf import Program, Unreadable, instruction
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_TRIES = 10
_INSN = struct.calcsize(const.BPF_INSN)
_RUNTIME_HINT = "list the devices in the container's OCI spec (or use CDI), or disable cgroup changes (no-cgroups)"

# linux/bpf_common.h, linux/bpf.h: the operations used, as class | source or size | operation.
_LDX_W = 0x61
_ALU64_MOV_X = 0xBF
_ALU64_MOV_K = 0xB7
_ALU32_MOV_K = 0xB4
_ALU32_AND_K = 0x54
_ALU32_RSH_K = 0x74
_JEQ_K = 0x15
_JNE_K = 0x55
_EXIT = 0x95
#: MINORBITS in linux/kdev_t.h, and what is left of its 32 bits.
_MAJORS, _MINORS = 1 << 12, 1 << 20
#: As w4 in place of the major number: equal to none, as majors have 12 bits (linux/kdev_t.h).
_NO_MAJOR = -1

#: r1 = struct bpf_cgroup_dev_ctx {u32 access_type; u32 major; u32 minor;}; access_type = access << 16 | type.
#: Leaves r1 for the original. Requests of another type, or for more than reading and writing (mknod), get the
#: major that no block matches: so a block jumps only over itself, and their number is not limited by the
#: 16 bits of a jump's offset.
_PROLOGUE = b"".join(
    (
        instruction(_LDX_W, 2, 1, 0),
        instruction(_LDX_W, 4, 1, 4),
        instruction(_LDX_W, 5, 1, 8),
        instruction(_ALU64_MOV_X, 3, 2),
        instruction(_ALU32_AND_K, 2, imm=0xFFFF),
        instruction(_ALU32_RSH_K, 3, imm=16),
        instruction(_ALU32_AND_K, 3, imm=~(const.BPF_DEVCG_ACC_READ | const.BPF_DEVCG_ACC_WRITE)),
        instruction(_JNE_K, 2, offset=1, imm=const.BPF_DEVCG_DEV_CHAR),
        instruction(_JEQ_K, 3, offset=1, imm=0),
        instruction(_ALU32_MOV_K, 4, imm=_NO_MAJOR),
    )
)


def _block(major: int, minor: int) -> bytes:
    """Allow this node, else continue after the block."""
    return b"".join(
        (
            instruction(_JNE_K, 4, offset=3, imm=major),
            instruction(_JNE_K, 5, offset=2, imm=minor),
            instruction(_ALU64_MOV_K, 0, imm=1),
            instruction(_EXIT),
        )
    )


_BLOCK_BYTES = len(_block(0, 0))


def compose(original: bytes, rules: Sequence[tuple[int, int]]) -> bytes:
    """``original`` with ``rules`` ((major, minor) of character devices) allowed before it.

    Rules that it already holds from an earlier time are kept once; if nothing is new, the result equals ``original``.
    Raises ValueError for a number that no device can have.
    """
    for major, minor in rules:
        if not (0 < major < _MAJORS and 0 <= minor < _MINORS):
            raise ValueError(f"not the number of a character device: {major}:{minor}")
    held, rest = split(original)
    new = [rule for rule in dict.fromkeys(rules) if rule not in held]
    if not new:
        return original
    return _PROLOGUE + b"".join(_block(*rule) for rule in [*held, *new]) + rest


def split(code: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """(the rules of our part, the original after it); ([], code) for a program without our part."""
    if not code.startswith(_PROLOGUE):
        return [], code
    rules: list[tuple[int, int]] = []
    position = len(_PROLOGUE)
    while True:
        major = struct.unpack_from("=i", code, position + 4)[0] if position + _BLOCK_BYTES <= len(code) else 0
        minor = struct.unpack_from("=i", code, position + _INSN + 4)[0] if major else 0
        if not major or code[position : position + _BLOCK_BYTES] != _block(major, minor):
            return rules, code[position:]
        rules.append((major, minor))
        position += _BLOCK_BYTES


def allow(cgroup: Fd, rules: Sequence[tuple[int, int]], undo: Undo) -> bool:
    """Let the cgroup's processes read and write ``rules``. False when nothing had to change.

    ``cgroup`` is its directory, opened for reading; ``undo`` gets the way back. All or nothing: on failure the
    original filter is in force again when this returns. Raises MountError.
    """
    try:
        return _allow(_filtered(cgroup), rules, undo)
    except SyscallError as error:
        hint = ""
        if error.errno == errno.EPERM:
            hint = "changing device filters needs CAP_SYS_ADMIN and CAP_NET_ADMIN of the host; " + _RUNTIME_HINT
        message = f"failed to add device rules to {cgroup.name}: {error}"
        raise MountError(message, hint=hint) from error


def _allow(cgroup: Fd, rules: Sequence[tuple[int, int]], undo: Undo) -> bool:
    programs, flags = _programs(cgroup)
    changes: list[tuple[Program, Fd]] = []
    for program in programs:
        code = compose(program.instructions, rules)
        if code != program.instructions:
            changes.append((program, bpf.load(code, gpl=program.gpl)))
    with Undo() as local:
        for program, new in changes:
            _replace(cgroup, program.fd, new, flags)
            local.push(_replace, cgroup.duplicate(), new, program.fd, flags)
        local.hand_over(undo)
    return bool(changes)


def _filtered(cgroup: Fd) -> Fd:
    """The cgroup whose filter is the container's: ``cgroup``, or the systemd scope around it."""
    own, _ = bpf.query(cgroup)
    if own or not os.path.dirname(cgroup.name).endswith(".scope"):
        return cgroup
    parent = os.path.dirname(cgroup.name)
    scope = syscalls.openat(cgroup, "..", os.O_RDONLY | os.O_DIRECTORY)
    scope.name = parent
    return scope


def _programs(cgroup: Fd) -> tuple[list[Program], int]:
    """The attached programs with their instructions, and the attach flags. Raises SyscallError, MountError."""
    for _ in range(_TRIES):
        ids, flags = bpf.query(cgroup)
        try:
            return [_read(id, cgroup) for id in ids], flags
        except SyscallError as error:
            if error.errno != errno.ENOENT:  # a program that was replaced since the query
                raise
    raise SyscallError(errno.EAGAIN, "BPF_PROG_QUERY", cgroup)


def _read(id: int, cgroup: Fd) -> Program:
    try:
        return bpf.read(id)
    except Unreadable as error:
        # Unchanged, this program denies our nodes; a guess about it could allow all others.
        raise MountError(
            f"failed to add device rules to {cgroup.name}: the instructions of device filter {id} cannot be read: "
            f"{error}; the container's filter is unchanged",
            hint="set net.core.bpf_jit_harden to 0 before the container is made, or " + _RUNTIME_HINT,
        ) from error


def _replace(cgroup: Fd, old: Fd, new: Fd, flags: int) -> None:
    """Replace ``old``, which is attached, by ``new``; both are loaded. Raises SyscallError."""
    if not flags & const.BPF_F_ALLOW_MULTI:
        # One program at most: attaching replaces it, atomically (__cgroup_bpf_attach() in kernel/bpf/cgroup.c).
        bpf.attach(cgroup, new, flags)
        return
    try:
        bpf.attach(cgroup, new, const.BPF_F_ALLOW_MULTI, old)
        return
    except SyscallError as error:
        if error.errno != errno.EINVAL:
            raise
    # Linux before 5.6. While both are attached, both must allow an access: stricter for an instant, never more open.
    bpf.attach(cgroup, new, const.BPF_F_ALLOW_MULTI)
    try:
        bpf.detach(cgroup, old)
    except SyscallError:
        bpf.detach(cgroup, new)
        raise
