"""``nvc-py share`` on the host, and in a container that has only its two files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.cli.share import store as share_store
from nvc.share import limits, policyfile, region, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in (1, 2)]
TWO = Limits(tuple(ResolvedGpu(uuid, -1, 10 << 30, 500, 20) for uuid in UUIDS), driver="580.1", container="abcdef")

Share = Callable[..., tuple[int, str, str]]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "nvc/share")


@pytest.fixture
def share(command: Callable[..., Any], directory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Share:
    config = tmp_path / "config.toml"
    config.write_text('[share]\nmaximum = "mem=20Gi,cap=80%,weight=100"\n')
    monkeypatch.setattr(policyfile, "CONFIG", str(config))

    def run(*words: str) -> tuple[int, str, str]:
        ran: tuple[int, str, str] = command("share", "--store", directory, *words, program="nvc-py")
        return ran

    return run


@pytest.fixture
def container(directory: str) -> str:
    """A container whose first process is this one; the path of its entry."""
    record = StoredShare("abcdef", "abcdef", os.getpid(), store.start_time(os.getpid()))
    return store.create(record, TWO, b"", directory=directory)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The two files of a container, and no store."""
    (tmp_path / "limits").write_bytes(limits.encode(TWO))
    (tmp_path / "region").write_bytes(region.header_bytes())
    monkeypatch.setattr(limits, "PATH", str(tmp_path / "limits"))
    monkeypatch.setattr(region, "PATH", str(tmp_path / "region"))
    yield


def stored(entry: str) -> Limits:
    return limits.decode(Path(entry, "limits").read_bytes())


def test_a_host_without_shares_says_so(share: Share) -> None:
    code, out, err = share("ls")
    assert (0, ["CONTAINER"]) == (code, out.split()[:1])
    assert "no container here has a share" in err


def test_another_user_is_told_whose_shares_are_listed(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(share_store, "usual", lambda: str(tmp_path / "none"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, _, err = command("share", "ls", program="nvc-py")
    assert (code, err) == (
        0,
        "no container of this user has a share; those of root's engines: sudo nvc-py share ls\n",
    )


def test_a_container_has_its_engines_name_beside_its_id(share: Share, directory: str) -> None:
    record = StoredShare("abcdef", "abcdef", os.getpid(), store.start_time(os.getpid()), name="default//web")
    store.create(record, TWO, b"", directory=directory)
    assert [line.split()[1] for line in share("ls")[1].splitlines()] == ["NAME", "default/web", "default/web"]
    assert json.loads(share("ls", "--json")[1])["shares"][0]["name"] == "default/web"


def test_a_file_is_no_store(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, why in ((f"{tmp_path}/file", "not a directory"), ("x" * 5000, "file name too long")):
        code, out, err = command("share", "--store", place, "ls", program="nvc-py")
        assert (code, out) == (1, "")
        assert err == f"nvc-py: input error: {place}: {why}\nnvc-py: hint: shares are in a directory\n"


def test_containers_are_listed_by_gpu(share: Share, container: str) -> None:
    code, out, _ = share("ls")
    assert 0 == code
    assert [
        ["abcdef", "-", UUIDS[index][:12], "0Mi/10.0Gi", "50%", "20", "normal", "0", "-", "-"] for index in (0, 1)
    ] == [line.split() for line in out.splitlines()[1:]]
    found = json.loads(share("ls", "--json")[1])
    assert [(uuid, 10 << 30, 500) for uuid in UUIDS] == [
        (row["gpu"], row["limit"], row["cap"]) for row in found["shares"]
    ]


def test_an_entry_that_is_damaged_spoils_no_other(share: Share, container: str, directory: str) -> None:
    other = store.create(StoredShare("other", "other"), TWO, b"", directory=directory)
    Path(other, "limits").write_bytes(b"x")
    Path(directory, "stray").write_text("")
    code, out, err = share("ls")
    assert (0, 3) == (code, len(out.splitlines()))
    assert 2 == err.count("warning:")


@pytest.mark.parametrize("words", [("get", "abc"), ("get", str(os.getpid()))])
def test_get_prints_words(words: tuple[str, ...], share: Share, container: str) -> None:
    lines = [f"abcdef {uuid} mem=10Gi,weight=20,cap=50%,priority=normal" for uuid in UUIDS]
    assert (0, "\n".join(lines) + "\n", "") == share(*words)


def test_set_changes_what_is_said(share: Share, container: str) -> None:
    assert 0 == share("set", "abc", "mem=5Gi,cap=25%,weight=3,priority=high")[0]
    assert [(5 << 30, 250, 3, "high")] * 2 == [
        (gpu.memory, gpu.cap, gpu.weight, gpu.priority) for gpu in stored(container).gpus
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("get", "{}"),
        ("set", "{}", "mem=5Gi"),
        ("set", "{}", "mem=5Gi", "--check"),
        ("pause", "{}"),
        ("resume", "{}"),
        ("suspend", "{}"),
        ("hint", "{}", "soon"),
    ],
    ids=" ".join,
)
def test_a_container_is_named_as_its_engine_does_everywhere(
    words: tuple[str, ...], share: Share, directory: str, tmp_path: Path
) -> None:
    for key, name, pid in (("abcdef", "team/web/server", os.getpid()), ("uvwxyz", "team/db/server", os.getppid())):
        record = StoredShare(key, key, pid, store.start_time(pid), name=name)
        store.create(record, TWO.replace(container=key), b"", directory=directory)
    agent = ("--agent", str(tmp_path / "none"))
    by_id, by_name, by_several = (
        share(*(word.format(name) for word in words), *agent) for name in ("abcdef", "web/server", "server")
    )
    assert by_name == by_id or "paused already" in by_name[1]
    assert "no container" not in by_name[2]
    assert by_several[0] == 1
    assert "container 'server' is not the only one" in by_several[2]
    assert "abcdef (team/web/server), uvwxyz (team/db/server)" in by_several[2]


def test_check_says_what_would_change_and_changes_nothing(share: Share, container: str) -> None:
    code, out, _ = share("set", "abc", "mem=5Gi", "--check", "--gpu=#0")
    assert (code, out) == (2, f"abcdef {UUIDS[0]} mem=5Gi,weight=20,cap=50%\nwould change\n")
    assert stored(container) == TWO
    assert share("set", "abc", "mem=10Gi,weight=20", "--check")[::2] == (0, "")
    assert share("set", "abc", "mem=21Gi", "--check")[0] == 1
    code, out, _ = share("set", "abc", "mem=5Gi", "--check", "--json")
    assert (code, json.loads(out)["changes"]) == (2, True)


def test_changes_are_told_in_json(share: Share, container: str, tmp_path: Path) -> None:
    agent = ("--json", "--agent", str(tmp_path / "none"))
    code, out, _ = share("set", "abc", "mem=5Gi", *agent)
    assert (code, json.loads(out)["held_by"]) == (0, "library")
    assert [row["gpu"] for row in json.loads(out)["gpus"]] == UUIDS
    for verb, state in (("pause", "paused"), ("resume", "resumed")):
        code, out, _ = share(verb, "abc", *agent)
        assert (code, json.loads(out)) == (0, {"container": "abcdef", "state": state})


@pytest.mark.parametrize("selector", ["#1", UUIDS[1]])
def test_set_changes_one_gpu(selector: str, share: Share, container: str) -> None:
    assert 0 == share("set", "abc", "mem=5Gi", "--gpu", selector)[0]
    assert [10 << 30, 5 << 30] == [gpu.memory for gpu in stored(container).gpus]


def test_set_keeps_to_the_maximum_unless_forced(share: Share, container: str) -> None:
    code, _, err = share("set", "abc", "mem=30Gi")
    assert 1 == code
    assert "mem=30Gi is more than this node gives" in err
    assert TWO == stored(container)
    assert 0 == share("set", "abc", "mem=30Gi", "--force")[0]
    assert [30 << 30] * 2 == [gpu.memory for gpu in stored(container).gpus]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("set", "abc"), "not a setting"),
        (("set", "mem=1Gi"), "takes a container and a share spec"),
        (("detach",), "hint: --pid 4711, or --container 4f0c"),
        (("set", "xyz", "mem=1Gi"), "no container 'xyz'"),
        (("set", "abc", "mem=lots"), "mem='lots'"),
        (("set", "abc", "off"), "not for one GPU"),
        (("set", "abc", "oversubscribe=on"), "cannot change"),
        (("set", "abc", "mem=1Gi", "--gpu", "GPU-0000"), "more than one GPU"),
        (("set", "abc", "mem=1Gi", "--gpu", "#7"), "is no GPU of this container"),
        (("get",), "a container is missing"),
        (("pause", "xyz"), "no container 'xyz'"),
    ],
)
def test_a_mistake_changes_nothing(words: tuple[str, ...], named: str, share: Share, container: str) -> None:
    code, out, err = share(*words)
    assert (1, "") == (code, out)
    assert named in err
    assert TWO == stored(container)


def test_pause_and_resume_are_in_the_limits(share: Share, container: str) -> None:
    assert 0 == share("pause", "abc")[0]
    assert TWO.replace(paused=True) == stored(container)
    assert "paused" in share("ls")[1]
    assert 0 == share("resume", "abc")[0]
    assert TWO == stored(container)


@pytest.mark.usefixtures("inside")
def test_a_container_sees_its_own_share(share: Share) -> None:
    assert ["abcdef"] * 2 == [line.split()[0] for line in share("ls")[1].splitlines()[1:]]
    assert "mem=10Gi" in share("get")[1]


@pytest.mark.usefixtures("inside")
def test_a_container_lowers_its_share(share: Share) -> None:
    code, out, _ = share("set", "mem=2Gi,cap=10%,weight=5", "--gpu", "#0")
    assert 0 == code
    assert f"{UUIDS[0]} mem=2Gi,weight=5,cap=10%" in out
    assert f"{UUIDS[1]} mem=10Gi,weight=20,cap=50%" in out
    assert "10%*" in share("ls")[1]


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("words", ["mem=11Gi", "cap=51%", "weight=21", "mem=50%", "priority=high", "oversubscribe=on"])
def test_a_container_raises_nothing(words: str, share: Share) -> None:
    code, out, _ = share("set", words)
    assert (1, "") == (code, out)
    descriptor = os.open(region.PATH, os.O_RDONLY)
    header = region.read_header(descriptor, 2)
    os.close(descriptor)
    assert ((0, 0),) * 3 == (header.memory, header.cap, header.weight)
