"""What the hook's words become in an engine's."""

from __future__ import annotations

import re

import pytest

from hook.report import sentence
from nvc.base.errors import MountError

#: libpod/oci_util.go, getOCIRuntimeError: a line with these words is all that Podman shows of an error.
NOT_FOUND = r"executable file not found in|no such file or directory"
CUT = rf"{NOT_FOUND}|permission denied|operation not permitted"


@pytest.mark.parametrize("text", ["no such file or directory", "No such file or directory", "permission denied"])
def test_podman_keeps_the_hint_and_says_nothing_of_commands(text: str) -> None:
    """It took a missing library for a missing command: exit code 127, and what to do was on another line."""
    said = sentence("nvc-hook", MountError(f"open failed: /x: {text}", hint="look at /x"))

    message = f"OCI runtime error: error running hook #0: exit status 1, stdout: , stderr: {said}\n"
    assert not re.search(NOT_FOUND, message, re.IGNORECASE)
    cut = re.search(f".*({CUT}).*", message, re.IGNORECASE)
    assert "hint: look at /x" in (cut[0] if cut else message)
    assert "open failed: /x: " in said
