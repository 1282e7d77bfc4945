"""Python and rm support the same driver versions."""

from __future__ import annotations

import subprocess

from nvc.share import abi
from tests.support.native import build

ODD = ("", ".", "580.", ".580", "580.1.2.3", "580.x", "x", "5800000", "0580.1", "580.1234567", " 580", "580 ", "-580")


def test_python_and_rm_have_the_same_versions() -> None:
    versions = [*ODD, *(f"{major}{rest}" for major in range(300, 1000) for rest in ("", ".10", ".105.08"))]
    program = build() / "abi_versions"

    printed = subprocess.run(
        [program], input="\n".join(versions) + "\n", capture_output=True, text=True, check=True, timeout=20
    ).stdout.splitlines()

    assert [(v, t == "known") for v, t in zip(versions, printed, strict=True)] == [(v, abi.knows(v)) for v in versions]
