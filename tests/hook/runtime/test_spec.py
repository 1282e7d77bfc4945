"""config.json is read and written without loss, and replaced in one step."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.runtime import spec
from nvc.base.errors import InputError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_whatever_is_there_stays(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "config.json")
        file.write_text(json.dumps(content))

        spec.write(directory, spec.read(directory))

        assert json.loads(file.read_text()) == content
        assert list(json.loads(file.read_text())) == list(content)
        assert os.listdir(directory) == ["config.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_owner_and_mode_stay(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    file.chmod(0o604)
    os.chown(file, 1234, 2345)

    spec.write(str(tmp_path), {"a": 1})

    status = file.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 2345, 0o604)


def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pre-fork server kills an edit of which the client has gone."""
    file = tmp_path / "config.json"
    file.write_text("{}")
    monkeypatch.setattr(spec, "dumps", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        try:
            spec.write(str(tmp_path), {"a": 1})
        finally:
            os._exit(1)

    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.listdir(tmp_path) == ["config.json"]
    assert file.read_text() == "{}"


def test_a_file_system_without_files_that_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # what an older kernel makes of it: EISDIR
    (tmp_path / "config.json").write_text("{}")
    spec.write(str(tmp_path), {"a": 1})

    assert spec.read(str(tmp_path)) == {"a": 1}
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_directory_that_takes_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()

    with pytest.raises(InputError, match="cannot be written"):
        spec.write(str(tmp_path), {})
    assert os.listdir(tmp_path) == ["config.json"]
    with pytest.raises(InputError, match="none: no such file"):
        spec.write(str(tmp_path / "none"), {})


@pytest.mark.parametrize("value", [[], "x", 1, True])
def test_parts_of_another_type(value: Any) -> None:
    with pytest.raises(InputError, match=r"/b/config\.json: hooks is not an object"):
        spec.section({"hooks": value}, "hooks", "/b")
    assert spec.section({"hooks": None}, "hooks", "/b") == {}
    assert spec.entries({}, "prestart", "/b") == []
