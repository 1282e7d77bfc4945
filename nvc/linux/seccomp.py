"""Filters of system calls, as classic BPF assembled here: no library is needed where ldconfig runs.

The allow-list is the reference's for its ldconfig sandbox (libnvidia-container.md 7.2) and what glibc since 2.33 calls
besides. Everything else answers EPERM, and the calls that glibc has an older substitute for answer ENOSYS, upon which
it takes the substitute. Calls of another architecture (32-bit, x32) end the process, as with the reference.
"""

from __future__ import annotations

import errno
import struct

from nvc.base.record import Record
from nvc.linux import const, syscalls
from nvc.linux.seccomp_numbers import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: What ldconfig may do: read, map and rename files, make links, end.
LDCONFIG = (
    *(
        "access",
        "arch_prctl",
        "brk",
        "chdir",
        "chmod",
        "clock_gettime",
        "clock_nanosleep",
        "close",
        "execve",
        "execveat",
    ),
    *("exit", "exit_group", "faccessat", "faccessat2", "fchmod", "fchmodat", "fcntl", "fstat"),
    *("ftruncate", "futex", "getcwd", "getdents", "getdents64", "getegid", "geteuid", "getgid", "getpgrp", "getpid"),
    *("getrandom", "gettid", "gettimeofday", "getuid", "lseek", "lstat", "memfd_create", "mkdir", "mkdirat", "mmap"),
    *("mprotect", "mremap", "munmap", "newfstatat", "open", "openat", "pread64", "prlimit64", "read", "readlink"),
    *("readlinkat", "readv", "rename", "renameat", "renameat2", "rseq", "rt_sigaction", "rt_sigprocmask"),
    *("rt_sigreturn", "sendfile", "set_robust_list", "set_tid_address", "stat", "statx", "symlink", "symlinkat"),
    *("tgkill", "time", "uname", "unlink", "unlinkat", "write", "writev"),
)
#: Newer calls, for which the C library falls back on ENOSYS; it would take EPERM for the result.
ABSENT = ("clone3", "close_range", "copy_file_range", "fchmodat2", "futex_waitv", "openat2")

#: Succeed without effect: the start of a container must not wait for a disk. The loader cache is made again at every
#: start, and the loader and ldconfig ignore one that a power failure truncated.
SKIPPED = ("fdatasync", "fsync")

# linux/bpf_common.h, linux/filter.h
_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JEQ = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JGE = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP = 0x05  # BPF_JMP | BPF_JA
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_LONGEST = 255
# struct seccomp_data {int nr; u32 arch; ...} in linux/seccomp.h
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
#: __X32_SYSCALL_BIT in asm/unistd.h: calls of x32 carry x86-64's architecture word and this bit.
_X32 = 0x40000000
#: Numbers of ioctl by the entry's architecture word; x32 has one of its own, and old kernels take the first there too.
_IOCTL = {"x86_64": (16, 514), "i386": (54,), "aarch64": (29,), "arm": (54,)}


def _statement(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack(const.SOCK_FILTER, code, jump_true, jump_false, k)


def assemble(
    names: Iterable[str],
    absent: Iterable[str] = ABSENT,
    skipped: Iterable[str] = SKIPPED,
    *,
    machine: str = const.MACHINE,
) -> bytes:
    """A filter program (struct sock_filter, one after another) that allows ``names`` and denies all else.

    A call that this architecture does not have (``open`` on aarch64) is left out. Raises ValueError for a name in no
    table, or a machine without one.
    """
    program = _head(machine)
    answers = dict.fromkeys(_numbers(skipped, machine), const.SECCOMP_RET_ERRNO | 0)
    answers |= dict.fromkeys(_numbers(absent, machine), const.SECCOMP_RET_ERRNO | errno.ENOSYS)
    answers |= dict.fromkeys(_numbers(names, machine), const.SECCOMP_RET_ALLOW)
    return b"".join([*program, *_search(_ranges(answers, const.SECCOMP_RET_ERRNO | errno.EPERM))])


class Condition(Record):
    """A call that is denied by an argument: where the lower 32 bits of argument ``index`` under ``mask`` are ``value``.

    The kernel uses no more of the arguments that are meant here.
    """

    name: str
    index: int
    value: int
    mask: int = 0xFFFFFFFF


def assemble_denials(
    names: Iterable[str], absent: Iterable[str], conditions: Sequence[Condition], *, machine: str = const.MACHINE
) -> bytes:
    """A filter program that denies ``names`` and what ``conditions`` say with EPERM, and allows all else.

    absent: calls that are ENOSYS. Calls of another architecture end the process. Raises ValueError as ``assemble``.
    """
    program = _head(machine)
    deny = _statement(_RETURN, const.SECCOMP_RET_ERRNO | errno.EPERM)
    for number in sorted(_numbers((one.name for one in conditions), machine)):
        rows: list[bytes] = []
        for one in conditions:
            if NUMBERS[machine].get(one.name) == number:
                rows += [_statement(_LOAD, _ARGUMENTS + 8 * one.index), _statement(_AND, one.mask)]
                rows += [_statement(_JEQ, one.value, 0, 1), deny]
        rows.append(_statement(_RETURN, const.SECCOMP_RET_ALLOW))
        program += [_statement(_JEQ, number, 0, len(rows)), *rows]
    answers = dict.fromkeys(_numbers(absent, machine), const.SECCOMP_RET_ERRNO | errno.ENOSYS)
    answers |= dict.fromkeys(_numbers(names, machine), const.SECCOMP_RET_ERRNO | errno.EPERM)
    return b"".join([*program, *_search(_ranges(answers, const.SECCOMP_RET_ALLOW))])


def _head(machine: str) -> list[bytes]:
    """Ends the process for a call of another architecture; then the call's number is in the accumulator."""
    if machine not in NUMBERS:
        raise ValueError(f"no system call table for {machine}")
    kill = _statement(_RETURN, const.SECCOMP_RET_KILL_PROCESS)
    rows = [_statement(_LOAD, _ARCH), _statement(_JEQ, const.AUDIT_ARCH[machine], 1, 0), kill, _statement(_LOAD, _NR)]
    return [*rows, _statement(_JGE, _X32, 0, 1), kill] if machine == "x86_64" else rows


def assemble_without(arch: str, number: int) -> bytes:
    """A filter program to which one call of ``arch`` is ENOSYS, and everything else allowed. Pure.

    arch: a key of ``const.AUDIT_ARCH``; a machine has the calls of several.
    """
    rows = (
        _statement(_LOAD, _ARCH),
        _statement(_JEQ, const.AUDIT_ARCH[arch], 0, 3),
        _statement(_LOAD, _NR),
        _statement(_JEQ, number, 0, 1),
        _statement(_RETURN, const.SECCOMP_RET_ERRNO | errno.ENOSYS),
        _statement(_RETURN, const.SECCOMP_RET_ALLOW),
    )
    return b"".join(rows)


def assemble_requests(
    mask: int, masked: Sequence[int], exact: Sequence[int], first: int, last: int, number: int
) -> bytes:
    """A filter program to which some requests of ioctl are error ``number``, and everything else is allowed. Pure.

    A request, of which the kernel takes 32 bits, is one of them where under ``mask`` it is in ``masked``, it is in
    ``exact``, or it is between ``first`` and ``last``. By every entry of x86-64 (64-bit, x32, 32-bit) and aarch64.
    """
    rows: list[tuple[int, int, str]] = [(_LOAD, _ARCH, "")]
    places: dict[str, int] = {}
    rows += [(_JEQ, const.AUDIT_ARCH[arch], arch) for arch in _IOCTL]
    rows.append((_RETURN, const.SECCOMP_RET_ERRNO | number, ""))
    for arch, numbers in _IOCTL.items():
        places[arch] = len(rows)
        rows += [(_LOAD, _NR, ""), (_AND, 0xFFFFFFFF & ~_X32, "")]
        rows += [(_JEQ, one, "request") for one in numbers]
        rows.append((_RETURN, const.SECCOMP_RET_ALLOW, ""))
    places["request"] = len(rows)
    rows += [(_LOAD, _ARGUMENTS + 8, ""), (_AND, mask, "")]
    rows += [(_JEQ, one, "refused") for one in masked]
    rows.append((_LOAD, _ARGUMENTS + 8, ""))
    rows += [(_JEQ, one, "refused") for one in exact]
    rows += [(_JGE, last + 1, "allowed"), (_JGE, first, "refused")]
    places["allowed"], places["refused"] = len(rows), len(rows) + 1
    rows += [(_RETURN, const.SECCOMP_RET_ALLOW, ""), (_RETURN, const.SECCOMP_RET_ERRNO | number, "")]
    return b"".join(
        _statement(code, k, places[label] - at - 1 if label else 0) for at, (code, k, label) in enumerate(rows)
    )


def _ranges(answers: Mapping[int, int], other: int) -> list[tuple[int, int]]:
    """(first number, answer) of each range of calls with one answer, from 0 on; other: for what is not in the table."""
    ranges = [(0, other)]
    for number in sorted(answers):
        for first, answer in ((number, answers[number]), (number + 1, answers.get(number + 1, other))):
            if ranges[-1][0] == first:
                ranges.pop()
            if not ranges or ranges[-1][1] != answer:
                ranges.append((first, answer))
    return ranges


def _search(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Halve the ranges until one is left.

    When a filter is installed, the kernel runs it for every call that there is (seccomp_cache_prepare() in
    kernel/seccomp.c): with a row for each call that was a third of a millisecond.
    """
    if len(ranges) == 1:
        return [_statement(_RETURN, ranges[0][1])]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    if len(below) > _LONGEST:
        # A conditional jump has 8 bits.
        return [_statement(_JGE, ranges[middle][0], 0, 1), _statement(_JUMP, len(below)), *below, *above]
    return [_statement(_JGE, ranges[middle][0], len(below), 0), *below, *above]


def install(names: Iterable[str] = LDCONFIG) -> None:
    """Install the filter for ``names``, also for programs that are executed later.

    no_new_privs must be set before (or CAP_SYS_ADMIN held): SyscallError EACCES; EINVAL or ENOSYS from a kernel
    without seccomp filters. Raises ValueError as ``assemble``.
    """
    syscalls.seccomp_filter(filter_of(names))


_made: dict[tuple[str, ...], bytes] = {}


def filter_of(names: Iterable[str]) -> bytes:
    """``assemble`` for this machine, cached by names: a process can assemble it before it forks."""
    key = tuple(names)
    if key not in _made:
        _made[key] = assemble(key)
    return _made[key]


def _numbers(names: Iterable[str], machine: str) -> set[int]:
    table = NUMBERS[machine]
    numbers = set()
    for name in names:
        if name in table:
            numbers.add(table[name])
        elif not any(name in other for other in NUMBERS.values()):
            # A misspelt row would otherwise deny the call silently.
            raise ValueError(f"unknown system call {name!r}")
    return numbers
