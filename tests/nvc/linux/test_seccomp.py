"""nvc.linux.seccomp against libseccomp (pyseccomp): the same answer to every call number."""

from __future__ import annotations

import errno
import os
import platform
import re
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from nvc.driver import confine
from nvc.linux import const, rights, seccomp, syscalls
from nvc.linux.seccomp_numbers import NUMBERS

ALLOW, KILL = const.SECCOMP_RET_ALLOW, const.SECCOMP_RET_KILL_PROCESS
EPERM, ENOSYS, SKIPPED = (const.SECCOMP_RET_ERRNO | number for number in (errno.EPERM, errno.ENOSYS, 0))
#: The reference's list (libnvidia-container.md 7.2), without _llseek, which no 64-bit machine has.
REFERENCE = """
    access arch_prctl brk chdir chmod close execve execveat exit exit_group fcntl fdatasync fstat fsync ftruncate
    getcwd getdents getdents64 getegid geteuid getgid getpgrp getpid gettid gettimeofday getuid lseek lstat mkdir
    mmap mprotect mremap munmap newfstatat open openat pread64 read readlink readv rename rt_sigaction
    rt_sigprocmask rt_sigreturn stat symlink tgkill time uname unlink write writev mkdirat unlinkat readlinkat
    faccessat symlinkat fchmodat renameat memfd_create sendfile clock_gettime rseq set_robust_list prlimit64
    getrandom statx set_tid_address clock_nanosleep faccessat2 renameat2
"""


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Run classic BPF on a struct seccomp_data as the kernel does; only what filters use."""
    rows = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    data = struct.pack(
        "=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6]
    )
    accumulator, at = 0, 0
    while True:
        code, jump_true, jump_false, k = rows[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, k)[0]
        elif code == 0x06:
            return k
        elif code == 0x05:
            at += k
        elif code == 0x54:
            accumulator &= k
        elif code in (0x15, 0x25, 0x35, 0x45):
            true = {
                0x15: accumulator == k,
                0x25: accumulator > k,
                0x35: accumulator >= k,
                0x45: bool(accumulator & k),
            }[code]
            at += jump_true if true else jump_false
        else:
            raise AssertionError(f"instruction {code:#x}")


def from_libseccomp(machine: str) -> bytes:
    pyseccomp = pytest.importorskip("pyseccomp")
    table = NUMBERS[machine]
    native = platform.machine() == machine
    made = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    made.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    if not native:
        made.remove_arch(pyseccomp.Arch.NATIVE)
        made.add_arch(pyseccomp.Arch.AARCH64 if machine == "aarch64" else pyseccomp.Arch.X86_64)
    allowed = {table[name] for name in seccomp.LDCONFIG if name in table}
    absent = {table[name] for name in seccomp.ABSENT} - allowed
    for number in sorted(allowed):
        made.add_rule(pyseccomp.ALLOW, number)
    for number in sorted(absent):
        made.add_rule(pyseccomp.ERRNO(errno.ENOSYS), number)
    for name in seccomp.SKIPPED:
        made.add_rule(pyseccomp.ERRNO(0), table[name])
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


def test_every_number_gets_libseccomp_s_answer() -> None:
    machine = platform.machine()
    ours, theirs = seccomp.assemble(seccomp.LDCONFIG), from_libseccomp(machine)
    numbers = [*range(1200), 0x3FFFFFFF, 0x40000000, 0x40000001, 0x4000003B, 0x7FFFFFFF, 0x80000000]
    native = const.AUDIT_ARCH[machine]
    for number in numbers:
        assert decide(theirs, native, number) == decide(ours, native, number), number
    for arch in (0x40000003, 0x40000028, 0, *set(const.AUDIT_ARCH.values()) - {native}):
        assert decide(theirs, arch, 1) == decide(ours, arch, 1) == KILL


@pytest.mark.parametrize("machine", NUMBERS)
def test_answers_by_name(machine: str) -> None:
    program = seccomp.assemble(seccomp.LDCONFIG, machine=machine)
    arch = const.AUDIT_ARCH[machine]
    table = NUMBERS[machine]
    for name, number in table.items():
        denied = EPERM if name not in seccomp.LDCONFIG else ALLOW
        expected = ENOSYS if name in seccomp.ABSENT else SKIPPED if name in seccomp.SKIPPED else denied
        assert decide(program, arch, number) == expected, name
    allowed = {number for name, number in table.items() if name in seccomp.LDCONFIG}
    others = set(range(600)) - allowed - {table[name] for name in (*seccomp.ABSENT, *seccomp.SKIPPED)}
    assert {decide(program, arch, number) for number in others} == {EPERM}


def test_reference_s_list_is_covered() -> None:
    assert set(REFERENCE.split()) <= {*seccomp.LDCONFIG, *seccomp.SKIPPED}
    # What was added beyond it, each for a reason in the module's text or the C library's use.
    assert set(seccomp.LDCONFIG) - set(REFERENCE.split()) == {"fchmod", "futex"}


def test_dangerous_calls_are_not_in_the_list() -> None:
    refused = {
        "ptrace",
        "mount",
        "setns",
        "unshare",
        "clone",
        "fork",
        "socket",
        "connect",
        "bpf",
        "mknod",
        "mknodat",
        "chroot",
    }
    assert not refused & set(seccomp.LDCONFIG)


def test_list_has_no_double_and_no_name_is_both() -> None:
    assert len(seccomp.LDCONFIG) == len(set(seccomp.LDCONFIG))
    lists = seccomp.LDCONFIG, seccomp.ABSENT, seccomp.SKIPPED
    assert len({name for names in lists for name in names}) == sum(map(len, lists))
    used = {name for names in (*lists, *(row for _, row in confine.DENIED)) for name in names}
    used |= {"socket", "ioctl", "clone"}
    assert used == set(NUMBERS["x86_64"]) | set(NUMBERS["aarch64"])


CONDITIONS = (
    seccomp.Condition("socket", 0, 2),
    seccomp.Condition("socket", 0, 10),
    seccomp.Condition("ioctl", 1, 0x5412),
    seccomp.Condition("clone", 0, 0x10000000, 0x10000000),
)


def test_denials_are_those_that_libseccomp_would_make() -> None:
    pyseccomp = pytest.importorskip("pyseccomp")
    machine = platform.machine()
    arch, table = const.AUDIT_ARCH[machine], NUMBERS[machine]
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    made.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    for name in ("mount", "ptrace", "bpf", "mknodat"):
        made.add_rule(refuse, table[name])
    for one in CONDITIONS:
        argument = pyseccomp.Arg(one.index, pyseccomp.MASKED_EQ, one.mask, one.value)
        made.add_rule(refuse, table[one.name], argument)
    made.add_rule(pyseccomp.ERRNO(errno.ENOSYS), table["clone3"])
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        theirs = file.read()
    ours = seccomp.assemble_denials(("mount", "ptrace", "bpf", "mknodat"), ("clone3",), CONDITIONS)
    words = (0, 2, 10, 0x5412, 0xABCD00005412, 0x10000000, 0x10000011, 1 << 40 | 2)
    for number in (*range(600), 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF):
        for first in words:
            for second in words:
                assert decide(theirs, arch, number, first, second) == decide(ours, arch, number, first, second)
    assert decide(ours, 0x40000003, 1) == KILL


def test_misspelt_name_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="opne"):
        seccomp.assemble(["read", "opne"])
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.assemble(["read"], machine="riscv64")


def test_one_call_of_one_architecture_is_absent() -> None:
    program = seccomp.assemble_without("i386", 90)
    i386, native = (const.AUDIT_ARCH[name] for name in ("i386", "x86_64"))
    assert decide(program, i386, 90) == ENOSYS
    assert {decide(program, arch, number) for arch, number in ((i386, 89), (i386, 91), (native, 90))} == {ALLOW}


@pytest.mark.parametrize("machine", NUMBERS)
def test_numbers_are_libseccomp_s(machine: str) -> None:
    pyseccomp = pytest.importorskip("pyseccomp")
    arch = pyseccomp.Arch.AARCH64 if machine == "aarch64" else pyseccomp.Arch.X86_64
    for name, number in NUMBERS[machine].items():
        known = pyseccomp.resolve_syscall(arch, name)
        # A call younger than the library is -1 to it.
        assert known == number or (known == -1 and number > 440), name


def test_numbers_are_the_headers() -> None:
    output = subprocess.run(
        ["cc", "-E", "-dM", "-"],
        input="#include <sys/syscall.h>\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    header = {name: int(value) for name, value in re.findall(r"#define __NR_(\w+) (\d+)", output)}
    table = NUMBERS[platform.machine()]
    assert len(set(table) & set(header)) > 70
    assert {name: table[name] for name in table if name in header and table[name] != header[name]} == {}


#: Tried for real: calls with arguments that do no harm when they are let through, chosen one in 500 numbers wherever
#: the call returns. What would stop or end the child instead of returning, or change it, is left out.
UNTRIED = {
    *(
        "exit",
        "exit_group",
        "rt_sigreturn",
        "rt_sigaction",
        "rt_sigprocmask",
        "arch_prctl",
        "brk",
        "munmap",
        "mprotect",
    ),
    *(
        "mremap",
        "mmap",
        "close",
        "tgkill",
        "set_tid_address",
        "set_robust_list",
        "rseq",
        "prlimit64",
        "execve",
        "execveat",
    ),
    *("futex", "clock_nanosleep", "time", "read", "readv", "write", "writev", "memfd_create", "sendfile"),
}


def try_all(pipe: int) -> None:
    """In a child: install the filter, call every number with invalid pointers, tell the errno of each."""
    machine = platform.machine()
    skipped = {NUMBERS[machine][name] for name in UNTRIED if name in NUMBERS[machine]}
    if machine == "x86_64":
        # uretprobe and uprobe: a trap of the kernel's own that filters do not see, SIGILL outside its trampoline.
        skipped |= {335, 336}
    seccomp.install(seccomp.LDCONFIG)
    answers = []
    for number in range(501):
        if number in skipped:
            answers.append(-1)
            continue
        # -1 is an invalid descriptor, address and flag to every call.
        answers.append(-min(0, syscalls.call(number, *[-1] * 6)))
    os.write(pipe, struct.pack(f"={len(answers)}i", *answers))


def test_kernel_refuses_what_is_not_listed() -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rights.no_new_privs()
            try_all(write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    answers = struct.unpack("=501i", data)
    program, arch = seccomp.assemble(seccomp.LDCONFIG), const.AUDIT_ARCH[platform.machine()]
    refused = 0
    for number, answer in enumerate(answers):
        if answer == -1:
            continue
        decision = decide(program, arch, number)
        if decision == EPERM:
            assert answer == errno.EPERM, number
            refused += 1
        elif decision == ENOSYS:
            assert answer == errno.ENOSYS, number
        elif decision == SKIPPED:
            assert answer == 0, number
        else:
            assert answer != errno.EPERM, number
    assert refused > 300


def test_x32_call_ends_the_process() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("x32 is x86-64's")
    child = os.fork()
    if child == 0:
        try:
            rights.no_new_privs()
            seccomp.install(seccomp.LDCONFIG)
            syscalls.call(0x40000000 + 39)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -31


@pytest.mark.root
def test_install_needs_no_new_privs() -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rights.drop_all()
            seccomp.install(["exit_group"])
        except syscalls.SyscallError as error:
            status = 0 if error.errno == errno.EACCES else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_ldconfig_works_under_the_filter(tmp_path: Path) -> None:
    """The host's own C library, as new as it may be, with nothing but the list."""
    ldconfig = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.access(path, os.X_OK)), None)
    if ldconfig is None:
        pytest.skip("needs ldconfig")
    (tmp_path / "etc").mkdir()
    (tmp_path / "lib").mkdir()
    library = next(Path("/lib").glob("*-linux-gnu/libc.so.6"))
    (tmp_path / "lib/libc.so.6").write_bytes(library.read_bytes())
    (tmp_path / "etc/ld.so.conf").write_text(f"{tmp_path}/lib\n")
    arguments = ["-f", f"{tmp_path}/etc/ld.so.conf", "-C", f"{tmp_path}/etc/ld.so.cache", f"{tmp_path}/lib"]
    child = os.fork()
    if child == 0:
        try:
            rights.no_new_privs()
            seccomp.install(seccomp.LDCONFIG)
            os.execve(ldconfig, [ldconfig, *arguments], {})
        finally:
            os._exit(99)
    assert os.waitpid(child, 0)[1] == 0
    assert b"libc.so.6" in (tmp_path / "etc/ld.so.cache").read_bytes()
