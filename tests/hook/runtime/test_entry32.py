"""The filter that nvc-runtime hands down to a guarded container: one call of the 32-bit entry, and no other."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from hook.runtime import entry32
from nvc.base.errors import NvcError
from nvc.linux import syscalls
from nvc.linux.syscalls import SyscallError
from tests.hook.runtime.conftest import Bench
from tests.support import cbpf


def test_the_first_mmap_of_the_32_bit_entry_is_not_there() -> None:
    assert cbpf.run(entry32.program(), cbpf.I386, 90, ()) == "errno"


@pytest.mark.parametrize(
    ("arch", "numbers"),
    [
        pytest.param(cbpf.I386, (0, 4, 54, 89, 91, 192), id="the 32-bit entry"),
        pytest.param(cbpf.X86_64, (0, 9, 16, 90, 0x40000000 | 90), id="the 64-bit entry"),
        pytest.param(0xC00000B7, (90, 222), id="another machine"),
    ],
)
def test_everything_else_is_as_before(arch: int, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        assert cbpf.run(entry32.program(), arch, number, ()) == "allow", number


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a matter of x86-64")
def test_a_kernel_that_does_not_take_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: bytes) -> None:
        raise SyscallError(22, "seccomp", len(program))

    monkeypatch.setattr(syscalls, "seccomp_filter", refuse)
    with pytest.raises(NvcError, match="guard: cannot close the 32-bit mmap to the container: Invalid argument"):
        entry32.close()


def filters(status: str) -> int:
    """How many a process has, by its /proc/PID/status."""
    found = [line.split()[1] for line in status.splitlines() if line.startswith("Seccomp_filters:")]
    if not found:
        pytest.skip("needs Linux 5.9, which counts filters")
    return int(found[0])


@pytest.mark.root
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a matter of x86-64")
@pytest.mark.parametrize(
    ("argv", "more"),
    [
        pytest.param(("exec", "c1", "true"), 1, id="exec"),
        pytest.param(("--root", "/r", "exec", "-d", "c1", "true"), 1, id="exec after options"),
        pytest.param(("create", "--bundle", "bundle", "c1"), 0, id="a container without a GPU"),
        pytest.param(("state", "c1"), 0, id="another command"),
    ],
)
def test_whatever_is_put_into_a_container_has_it_because_that_one_may_be_guarded(
    bench: Bench, argv: tuple[str, ...], more: int
) -> None:
    assert bench.run(*argv).returncode == 0

    _, _, status = ast.literal_eval(bench.record.read_text())
    assert more == filters(status) - filters(Path("/proc/self/status").read_text())
