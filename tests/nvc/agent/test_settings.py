"""Section [agent] of config.toml: what it means, and what is said of a mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.agent.settings import AgentSettings, load
from nvc.base.errors import InputError


def written(place: Path, text: str) -> str:
    path = place / "config.toml"
    path.write_text(text)
    return str(path)


def test_without_a_section_the_defaults_hold(tmp_path: Path) -> None:
    assert load(written(tmp_path, '[share]\nguard = "auto"\n')) == AgentSettings()


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """[agent]
directory = "/run/x"
policy = "4"
slots = 8
period = 100
metrics = "127.0.0.1:9400"
metrics-hami = true
group = "gpu"
unaccounted = "freeze"
first-uid = 70000
graphics = true
"""
    expected = AgentSettings("/run/x", "soft", 8, 100_000, "127.0.0.1:9400", True, "gpu", "freeze", 70_000, True)
    assert load(written(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("directory = 1", "agent.directory is not a string"),
        ('directory = "run/x"', "agent.directory is not an absolute path"),
        ("group = []", "agent.group is not a string"),
        ("metrics = true", "agent.metrics is not a string"),
        ('metrics-hami = "yes"', "agent.metrics-hami is not a boolean"),
        ('policy = "greedy"', "agent.policy: "),
        ("policy = 17", "agent.policy: "),
        ("policy = true", "agent.policy is not a string or an integer"),
        ("slots = 0", "agent.slots "),
        ("slots = 1001", "agent.slots "),
        ('slots = "8"', "agent.slots "),
        ("slots = true", "agent.slots "),
        ("period = 9", "agent.period "),
        ("period = 201", "agent.period "),
        ("period = 50.5", "agent.period "),
        ("pace = 1", "agent.pace is unknown"),
        ('unaccounted = "kill"', "agent.unaccounted: 'kill' is none of warn, stop-admission, freeze"),
        ("first-uid = 65535", "agent.first-uid is not a number from 65536 to 4294836222"),
        ("first-uid = 4294836223", "agent.first-uid "),
        ('first-uid = "70000"', "agent.first-uid is not an integer"),
        ("unaccounted = true", "agent.unaccounted is not a string"),
        ('graphics = "yes"', "agent.graphics is not a boolean"),
        ("graphics = 1", "agent.graphics is not a boolean"),
    ],
)
def test_a_mistake_is_told_with_the_file_and_the_key(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path, f"[agent]\n{line}\n")
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.message.replace(f"{path}:2: ", f"{path}: ").startswith(f"{path}: {said}")


def test_what_is_no_table_no_toml_or_not_there_is_told(tmp_path: Path) -> None:
    for text, said in (("agent = 1\n", "agent is not a table"), ("[agent\n", "not TOML")):
        path = written(tmp_path, text)
        with pytest.raises(InputError, match=said):
            load(path)
    with pytest.raises(InputError, match="no such file"):
        load(str(tmp_path / "none.toml"))
