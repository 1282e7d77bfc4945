"""What was put in comes out again, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvc.engines import jsontext, tomltext
from nvc.engines.changes import same
from nvc.engines.config import EngineConfig
from tests.nvc.engines.samples import CASES, ENGINES, Memory, before, config, engine

PATH = "/etc/engine/config"
FLAGS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3)


def parsed(name: str, text: str) -> object:
    form = jsontext if name.startswith("docker") else tomltext
    return form.parse(text.removeprefix("\ufeff"))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(flags=FLAGS, data=st.data())
@pytest.mark.parametrize("case", CASES)
def test_removing_gives_the_file_back(case: str, flags: list[tuple[bool, bool]], data: st.DataObject) -> None:
    """After any number of runs with any options the file is as it was, in content; after one run, to the letter."""
    memory = Memory(**{PATH: before(case)})
    for default, cdi in flags:
        memory.carry_out(engine(case).plan(config(case).replace(default=default, cdi=cdi), memory))
    memory.carry_out(engine(case).plan(config(case).replace(remove=True), memory))

    assert same(parsed(case, before(case)), parsed(case, memory.texts[PATH]))
    assert memory.backups == {}
    if len(flags) == 1:
        assert memory.texts == {PATH: before(case)}


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("cdi", [True, False])
@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("name", ENGINES)
def test_a_file_that_was_not_there_goes_away(name: str, default: bool, cdi: bool, hooks: bool) -> None:
    asked = EngineConfig(
        main_file=PATH, hooks_dir="/h", default=default, cdi=cdi, hooks=hooks and name in ("crio", "podman")
    )
    memory = Memory()
    memory.carry_out(ENGINES[name].plan(asked, memory))
    assert memory.texts
    memory.carry_out(ENGINES[name].plan(asked.replace(remove=True), memory))

    assert (memory.texts, memory.backups) == ({}, {})


OTHERS = {
    "docker": ('{\n    "debug": true,', '    "debug": true', {"debug": True}),
    "containerd": ("# mine\nroot = '/r'\n", "# mine\n", {"root": "/r"}),
    "crio": ("# mine\nroot = '/r'\n", "# mine\n", {"root": "/r"}),
    "podman": ("# mine\nroot = '/r'\n", "# mine\n", {"root": "/r"}),
}


@pytest.mark.parametrize("name", ENGINES)
def test_what_others_wrote_since_stays(name: str) -> None:
    asked = EngineConfig(main_file=PATH, default=True, hooks_dir="/h")
    memory = Memory()
    memory.carry_out(ENGINES[name].plan(asked, memory))
    start, line, data = OTHERS[name]
    text = memory.texts[PATH]
    memory.texts[PATH] = start + text[1:] if name == "docker" else start + text
    memory.carry_out(ENGINES[name].plan(asked.replace(remove=True), memory))

    left = parsed(name, memory.texts[PATH])
    assert isinstance(left, dict)
    assert line in memory.texts[PATH]
    assert data == {key: value for key, value in left.items() if key != "version"}


@pytest.mark.parametrize("case", CASES)
def test_what_others_changed_since_stays_and_the_rest_is_as_before(case: str) -> None:
    asked = config(case)
    memory = Memory(**{PATH: before(case)})
    memory.carry_out(engine(case).plan(asked, memory))
    docker = case.startswith("docker")
    memory.texts[PATH] += "\n" if docker else "\n# a word of mine\n[added]\nby = 'hand'\n"
    memory.carry_out(engine(case).plan(asked.replace(remove=True), memory))

    if docker:
        assert memory.texts[PATH].endswith("\n")
        assert parsed(case, memory.texts[PATH]) == parsed(case, before(case))
        return
    assert "# a word of mine\n[added]\n" in memory.texts[PATH]
    expected = {**tomltext.parse(before(case)), "added": {"by": "hand"}}
    if case in ("containerd-empty", "containerd-comments"):
        expected["version"] = 2  # what was added was added to a file of this version
    assert same(expected, tomltext.parse(memory.texts[PATH]))


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("toolkit")])
def test_another_programs_runtime_is_not_ours_to_remove(case: str) -> None:
    memory = Memory(**{PATH: before(case)})
    plan = memory.carry_out(engine(case).plan(config(case).replace(remove=True), memory))

    assert plan.edits == ()
    assert [note for note in plan.notes if "nvidia-container-runtime, not ours" in note]


@pytest.mark.parametrize("name", ENGINES)
def test_two_names_go_one_by_one(name: str) -> None:
    start = {"docker": '{"debug": true}\n'}.get(name, "[other]\na = 1\n")
    first, second = (
        EngineConfig(main_file=PATH, hooks_dir="/h"),
        EngineConfig(name="nvidia-cdi", main_file=PATH, hooks_dir="/h"),
    )
    memory = Memory(**{PATH: start})
    for asked in (first, second, first.replace(remove=True)):
        memory.carry_out(ENGINES[name].plan(asked, memory))
    assert "nvidia-cdi" in memory.texts[PATH]
    assert memory.backups == {PATH: start}
    memory.carry_out(ENGINES[name].plan(second.replace(remove=True), memory))

    assert parsed(name, start) == parsed(name, memory.texts[PATH])
    assert memory.backups == {}


@pytest.mark.parametrize("name", ENGINES)
def test_removing_from_nothing_changes_nothing(name: str) -> None:
    asked = EngineConfig(main_file=PATH, hooks_dir="/h", remove=True)

    assert ENGINES[name].plan(asked, Memory()).edits == ()
    assert ENGINES[name].plan(asked, Memory(**{PATH: "\n"})).edits == ()


@pytest.mark.parametrize("name", ENGINES)
def test_a_broken_backup_is_no_help_and_no_harm(name: str) -> None:
    asked = EngineConfig(main_file=PATH, hooks_dir="/h")
    memory = Memory(**{PATH: {"docker": '{"debug": true}'}.get(name, "[other]\na = 1\n")})
    memory.carry_out(ENGINES[name].plan(asked, memory))
    memory.backups[PATH] = "{["
    memory.carry_out(ENGINES[name].plan(asked.replace(remove=True), memory))

    assert "nvidia" not in memory.texts[PATH]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("docker", '{"runtimes": {}}', id="docker"),
        pytest.param("containerd", "version = 2\n", id="containerd-version"),
        pytest.param(
            "containerd", 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes]\n', id="cri"
        ),
        pytest.param("crio", "[crio.runtime.runtimes]\n", id="crio"),
        pytest.param("podman", "[engine.runtimes]\n", id="podman"),
    ],
)
def test_empty_tables_of_others_stay(name: str, text: str) -> None:
    assert (
        ENGINES[name].plan(EngineConfig(main_file=PATH, hooks_dir="/h", remove=True), Memory(**{PATH: text})).edits
        == ()
    )
