"""``nvc-py seccomp``: what an engine and libseccomp make of the profile that it prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nvc.cli.conftest import Ran
from tests.nvc.guard.test_filter import DEFAULT_DENY, IOCTL, IOCTL32, NATIVE, compile_profile
from tests.support import cbpf

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="a matter of x86-64")

#: As Docker's and Podman's default profile says which architectures there are.
ENGINES = {
    **{key: value for key, value in DEFAULT_DENY.items() if key != "architectures"},
    "archMap": [
        {"architecture": NATIVE, "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
    ],
}
OLD_MMAP, GETPID32 = 90, 20
ALLOC, OTHER = (3, 0xC030462B), (3, 0x5401)


def chosen(profile: dict[str, Any]) -> dict[str, Any]:
    """What Docker and Podman make of it for this machine: a list of architectures."""
    if "archMap" not in profile:
        return profile
    (entry,) = (entry for entry in profile["archMap"] if entry["architecture"] == NATIVE)
    return {**profile, "architectures": [entry["architecture"], *entry["subArchitectures"]]}


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(ENGINES, id="an engine's"),
        pytest.param(DEFAULT_DENY, id="a runtime's"),
        pytest.param(None, id="none"),
    ],
)
@pytest.mark.parametrize(
    ("words", "answers"),
    [
        pytest.param((), ("allow", "allow", "notify", "allow"), id="as it is"),
        pytest.param(("--no-32-bit",), ("kill",) * 4, id="without the 32-bit entry"),
    ],
)
def test_programs_of_32_bits_are_watched_or_end(
    command: Callable[..., Ran],
    tmp_path: Path,
    profile: dict[str, Any] | None,
    words: tuple[str, ...],
    answers: tuple[str, ...],
) -> None:
    if profile is not None:
        (tmp_path / "profile").write_text(json.dumps(profile))
        words = (*words, "--profile", str(tmp_path / "profile"))

    code, out, err = command("seccomp", *words, program="nvc-py")

    assert (code, err) == (0, "")
    program = compile_profile(chosen(json.loads(out)))
    calls = ((OLD_MMAP, ()), (GETPID32, ()), (IOCTL32, ALLOC), (IOCTL32, OTHER))
    assert answers == tuple(cbpf.run(program, cbpf.I386, *call).partition("-")[0] for call in calls)
    assert cbpf.run(program, cbpf.X86_64, IOCTL, ALLOC) == "notify"
    assert cbpf.run(program, cbpf.X86_64, IOCTL, OTHER) == "allow"
