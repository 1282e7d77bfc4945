"""``nvc-py top``: both sources, every width of window, and an agent that comes and goes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.status import TenantProcess
from nvc.agent.view import Seen, collect
from nvc.base.errors import AgentError, PrivilegeError
from nvc.cli.top import source as top_source
from nvc.cli.top import text
from nvc.cli.top.source import Source
from nvc.share.view import ShareRow
from tests.support.agent_status import GIB, UUIDS, saying, share, status, tenant
from tests.support.fake_agent import FakeAgent

ROOT = Path(__file__).parents[4]
Top = Callable[..., tuple[int, str, str]]


@pytest.fixture
def top(command: Callable[..., Any], usual_agent: Callable[[str], None], socket: str, directory: str) -> Top:
    usual_agent(socket)

    def run(*words: str) -> tuple[int, str, str]:
        ran: tuple[int, str, str] = command("top", "--store", directory, *words, program="nvc-py")
        return ran

    return run


def drawn(seen: Seen, columns: int, **options: bool) -> list[str]:
    return [line.plain for line in text.picture(seen, columns, **options)]


def test_the_agents_tenants_are_shown_with_their_processes(socket: str, top: Top) -> None:
    one = tenant(processes=(TenantProcess(os.getpid(), (3 * GIB,)),))
    with FakeAgent(socket, status=saying(status(one))):
        code, out, err = top("--once")
    assert (0, "") == (code, err)
    lines = out.splitlines()
    assert "agent 1.2" in lines[0]
    row = next(line for line in lines if line.startswith("c0000"))
    assert ["4096Mi/10.0Gi", "50%", "~48%", "50%", "20", "normal", "2", "5.0ms", "3.0s", "3", "guard"] == row.split()[
        2:
    ]
    assert f"    {os.getpid()} {Path('/proc/self/comm').read_text().strip()} 3072Mi" in lines
    assert "    denied: over-quota 3" in lines
    measured = tenant(gpus=(share(achieved_ratio=0.44, is_measured=True),))
    with FakeAgent(socket, status=saying(status(measured))):
        assert " 44% " in top("--once")[1], "what the driver counts is no estimate"
    assert 1 == sum(line.startswith(f"GPU 0  {UUIDS[0]}") and "policy weighted" in line for line in lines)


def test_a_service_has_a_column_with_its_wait(socket: str, top: Top) -> None:
    served = share(priority="service", latency_us=1000, bound_us=770, service="served")
    with FakeAgent(socket, status=saying(status(tenant(gpus=(served,))))):
        out = top("--once")[1]
    assert "  WAIT  " in out and " 0.77/1ms " in out
    over = served.replace(service="over", bound_us=10_230)
    with FakeAgent(socket, status=saying(status(tenant(gpus=(over,))))):
        out = top("--once")[1]
    assert " 10.2/1ms " in out and "    it computed more than its part" in out
    with FakeAgent(socket, status=saying(status(tenant()))):
        assert "WAIT" not in top("--once")[1]


def test_xids_are_lines_below_the_share_or_the_gpu(socket: str, top: Top) -> None:
    told = status(tenant(gpus=(share(xids={"31": 2, "43": 1}),)))
    told = told.replace(gpus=(told.gpus[0].replace(xids={"79": 1}), told.gpus[1]))
    with FakeAgent(socket, status=saying(told)):
        lines = top("--once")[1].splitlines()
    assert "    Xid 31 (2 times), 43: errors that the driver reported" in lines
    assert lines.index("    Xid 79: errors that the driver reported") < lines.index(
        "    Xid 31 (2 times), 43: errors that the driver reported"
    )


def test_without_an_agent_the_shims_shares_are_shown_and_it_says_so(top: Top, container: str) -> None:
    code, out, err = top("--once")
    assert (0, "") == (code, err)
    assert "no agent" in out.splitlines()[0]
    row = next(line for line in out.splitlines() if line.startswith("shimmed"))
    assert ["0Mi/10.0Gi", "-", "-", "50%", "20", "normal", "0", "-", "-", "-", "library"] == row.split()[2:]


def test_both_sources_make_one_picture_without_duplicates(socket: str, top: Top, container: str) -> None:
    both = tenant(2, container="shimmed", gpus=(share(UUIDS[1]),))
    with FakeAgent(socket, status=saying(status(tenant()), status(tenant(), both))):
        first, second = (json.loads(top("--json")[1]) for _ in range(2))
    enforcers = [
        [(one["container"][:7], one["enforcer"]) for gpu in seen["gpus"] for one in gpu["shares"]]
        for seen in (first, second)
    ]
    assert [[("c000000", "guard"), ("shimmed", "library")], [("c000000", "guard"), ("shimmed", "guard")]] == enforcers
    assert "1.2" == first["agent"]


def test_a_host_without_shares_says_so(top: Top) -> None:
    code, out, _ = top()  # its output is no terminal: once
    assert 0 == code
    assert "no container here has a share" in out


def test_an_agent_that_goes_away_is_said_and_asked_again(socket: str, directory: str) -> None:
    source = Source(socket, directory, dict)
    with FakeAgent(socket, status=saying(status(tenant()))):
        assert ((), "1.2") == (source.look().problems, source.look().agent)
    gone = source.look()
    assert "" == gone.agent
    assert "the agent went away at " in gone.problems[0] and "trying again" in gone.problems[0]
    assert any("went away" in line for line in drawn(gone, 80))
    with FakeAgent(socket, status=saying(status(tenant()))):
        assert "1.2" == source.look().agent


def test_an_agent_of_another_version_is_a_line_and_no_traceback(socket: str, directory: str) -> None:
    strange = {"ok": True, "version": "9", "weather": "fine"}
    with FakeAgent(socket, status=lambda _: iter([strange])):
        seen = Source(socket, directory, dict).look()
    assert "the agent is of another version" in seen.problems[0]


def test_an_agent_that_does_not_answer_is_not_waited_for(
    socket: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_source, "AGENT_TIMEOUT_S", 0.2)
    with FakeAgent(socket, status=lambda _: iter(())):
        seen = Source(socket, directory, dict).look()
    assert "the agent does not answer (no answer came within 0.2 s)" in seen.problems[0]


@pytest.mark.parametrize("form", ["--once", "--json"])
def test_an_agent_that_does_not_answer_is_an_error_and_never_said_to_be_missing(
    form: str, socket: str, top: Top, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It said "no agent: shares enforced by the preloaded library", with exit code 0.
    monkeypatch.setattr(top_source, "AGENT_TIMEOUT_S", 0.2)
    with FakeAgent(socket, status=lambda _: iter(())):
        code, out, err = top(form)
    assert code == 1
    assert "shimmed" in out, "what is known without it is shown"
    assert "no agent" not in out + err
    assert "the agent does not answer" in err and "systemctl restart nvc-agent" in err
    said = json.loads(out)["silent"] if form == "--json" else out.splitlines()[0]
    assert "does not answer" in said


def test_an_agent_that_fails_or_refuses_is_not_said_to_be_missing(socket: str, directory: str) -> None:
    for error, why in ((AgentError("too much"), "gave no status"), (PrivilegeError("root"), "refuses this user")):

        def refuse(_: object, error: Exception = error) -> Iterator[dict[str, Any]]:
            raise error

        with FakeAgent(socket, status=refuse):
            seen = Source(socket, directory, dict).look()
        assert f"agent {why}" in drawn(seen, 200)[0] and "no agent" not in drawn(seen, 200)[0]


def test_a_user_without_access_is_told_why(top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PrivilegeError("/run/nvc/share: permission denied", hint="be root")

    monkeypatch.setattr(top_source.share_rows, "of_store", refuse)
    code, out, err = top("--once")
    assert (1, "") == (code, out)
    assert "permission denied" in err and "hint: be root" in err


def test_frozen_is_a_part_of_the_time_from_the_second_look_on(
    socket: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((100.0, 102.0, 104.0))
    monkeypatch.setattr(top_source.time, "time", lambda: next(times))
    frozen = [status(tenant(gpus=(share(frozen_ns=ns),))) for ns in (5_000_000_000, 5_500_000_000, 1_000_000_000)]
    source = Source(socket, directory, dict)
    with FakeAgent(socket, status=saying(*frozen)):
        parts = [source.look().gpus[0].shares[0].frozen_part for _ in frozen]
    assert [None, 0.25, None] == parts  # the third is less than before: another tenant of the same name


def test_sizes_of_gpus_come_from_this_machine_when_the_agent_has_none(directory: str, container: str) -> None:
    seen = Source("/nowhere/control", directory, lambda: {UUIDS[1]: (1, 80 * GIB)}).look()
    assert [(UUIDS[1], 1, 80 * GIB)] == [(gpu.uuid, gpu.minor, gpu.memory) for gpu in seen.gpus]


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 80, 100, 130, 200])
def test_a_narrow_window_loses_columns_and_never_the_memory(columns: int) -> None:
    many = tuple(
        tenant(number, denials={}, processes=(), gpus=(share(memory=number * GIB, managed=0, driver_usage=0),))
        for number in range(4)
    )
    lines = drawn(collect(status(*many), (), 0.0), columns)
    rows = [line for line in lines if line.startswith("c0")]
    assert 4 == len(rows)
    assert all(len(line) <= columns for line in rows)
    if columns >= 30:
        assert ["0Mi/10.0Gi", "1024Mi/10.0Gi", "2048Mi/10.0Gi", "3072Mi/10.0Gi"] == [
            next(word for word in row.split() if "/" in word) for row in rows
        ]
    heads = next(line for line in lines if line.startswith("CONT")).split()
    assert heads == [name for name in text.COLUMNS if name in heads] if columns >= 30 else True
    assert (len(heads) == len(text.COLUMNS) - 2) == (columns >= 130), "all but NAME and WAIT, which none has"


def test_a_container_has_its_engines_name_beside_its_id() -> None:
    seen = collect(status(tenant(1, name="default/trainer-0/main"), tenant(2)), (), 0.0)
    lines = drawn(seen, 200)
    heads = next(line for line in lines if line.startswith("CONT")).split()
    assert heads[:3] == ["CONTAINER", "NAME", "MEMORY"]
    named, other = (line for line in lines if line.startswith("c0"))
    assert named.split()[1] == "default/trainer-0/main"
    assert "trainer" not in other
    assert all("NAME" not in line for line in drawn(seen, 60)), "it gives way to what is measured"


@pytest.mark.parametrize(("part", "expected"), [(0, 0), (-1, 0), (0.5, 6), (0.99, 12), (7.0, 12)])
def test_a_bar_is_as_long_as_its_part(part: float, expected: int) -> None:
    drawn_bar = text.bar(part)
    assert (expected, 12) == (drawn_bar.plain.count("█"), drawn_bar.cell_len)


@pytest.mark.parametrize(
    ("part", "expected"), [(None, "-"), (0, "0%"), (0.001, "0.1%"), (0.0999, "10%"), (0.5, "50%"), (1, "100%")]
)
def test_percentages_have_a_decimal_where_it_counts(part: float | None, expected: str) -> None:
    assert expected == text.percent(part)


def test_what_deserves_attention_has_a_line() -> None:
    row = ShareRow("x", "x", UUIDS[0], GIB, 0, 1000, 0, "normal", True, True, 0, notes=("driver unknown",), managed=GIB)
    other = tenant(
        gpus=(share(driver_usage=5 * GIB, managed=0),), denials={"over-quota": 1, "bad-size": 7}, paused=True
    )
    lines = drawn(collect(status(other), (row,), 0.0), 120)
    for expected in (
        "    denied: bad-size 7, over-quota 1",
        "    the driver says 5120Mi",
        "    managed memory: 1024Mi",
        "    driver unknown",
        "    oversubscribe",
    ):
        assert expected in lines
    assert 2 == sum("paused" in line for line in lines)
