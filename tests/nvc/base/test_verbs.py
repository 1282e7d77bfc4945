"""The tables of verbs, and errors that cross a process boundary unchanged."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.base import errors
from nvc.base.errors import ContainerError, DetectionError, InitializationError, MountError, NvcError
from nvc.base.log import Log, open_log
from nvc.base.verbs import IDLE, HelperService, Verb, by_phase, raise_remote, translate
from nvc.container.verbs import CONTAINER
from nvc.driver.verbs import DRIVER
from nvc.linux.rights import RIGHTS
from nvc.linux.syscalls import SyscallError
from rpc.errors import NOT_PROCESSED, TIMED_OUT, RemoteError
from rpc.method import Service
from rpc.process import start

ROWS = [pytest.param(service, verb, id=f"{service.name}.{name}") for service in (DRIVER, CONTAINER)
        for name, verb in service.methods.items()]  # fmt: skip


@pytest.mark.parametrize(("service", "verb"), ROWS)
def test_every_verb_says_why_a_caller_may_have_it(service: Service, verb: Verb) -> None:
    assert isinstance(verb, Verb)
    assert verb.why.endswith(".") and verb.why[0].isupper()
    assert verb.failure.stage
    assert "--timeout" in verb.hint


def test_only_the_service_that_changes_containers_unwinds() -> None:
    assert (False, True) == (DRIVER.unwinds, CONTAINER.unwinds)


def test_rights_are_those_of_the_row_and_only_while_it_runs() -> None:
    log: list[str] = []

    def handler(request: Any, fds: list[int]) -> Any:
        log.append(f"ran {request}")
        if request == "bad":
            raise ValueError
        return "reply"

    table = by_phase(CONTAINER, {"inspect": handler, "apply": handler}, log.append, Log.none())
    assert "reply" == table["inspect"]("good", [])
    with pytest.raises(ValueError):
        table["apply"]("bad", [])
    assert ["container", "ran good", "info", "mount", "ran bad", "info"] == log


def test_the_system_call_behind_an_error_is_in_the_log(tmp_path: Path) -> None:
    def handler(request: Any, fds: list[int]) -> Any:
        try:
            raise SyscallError(errno.EROFS, "mkdirat", "7 (/rootfs)", "nvidia")
        except OSError as error:
            raise MountError("file creation failed: /rootfs/nvidia: read-only file system") from error

    table = by_phase(CONTAINER, {"inspect": handler, "apply": handler}, lambda phase: None, open_log(f"{tmp_path}/log"))
    with pytest.raises(MountError):
        table["apply"]("", [])
    log = (tmp_path / "log").read_text()
    assert "caused by SyscallError: " in log
    assert all(word in log for word in ("mkdirat", "7 (/rootfs)", "nvidia", "read-only"))


@pytest.mark.parametrize(("service", "verb"), ROWS)
def test_every_phase_is_in_the_table_of_rights(service: Service, verb: Verb) -> None:
    assert verb.phase in (RIGHTS if service is CONTAINER else ("",))
    assert IDLE in RIGHTS


def crossed(error: BaseException, service: HelperService = CONTAINER, verb: str = "apply") -> NvcError:
    """What a caller gets when the handler of ``verb`` raises ``error``: through a real helper process."""

    def handler(request: Any, fds: list[int]) -> Any:
        raise error

    class Empty:
        def as_data(self) -> dict[str, Any]:
            return {}

        @classmethod
        def from_data(cls, data: object) -> Empty:
            return cls()

    from rpc.method import Method

    plain = Service(service.name, [Method(name, Empty, Empty) for name in service.methods])
    with (
        start(plain, dict.fromkeys(service.methods, handler), translate=translate) as client,
        pytest.raises(RemoteError) as caught,
    ):
        client.call(verb, Empty())
    with pytest.raises(NvcError) as ours:
        raise_remote(caught.value, service)
    return ours.value


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__name__) for kind in errors.BY_STAGE.values()])
def test_an_error_of_ours_arrives_as_it_was(kind: type[NvcError]) -> None:
    error = crossed(kind("mount operation failed: /dev/nvidia0: no such device", hint="look at dmesg \udc80"))
    assert kind is type(error)
    assert ("mount operation failed: /dev/nvidia0: no such device", "look at dmesg \udc80") == (
        error.message,
        error.hint,
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            FileNotFoundError(2, "No such file or directory", "/x"), "/x: no such file or directory", id="file"
        ),
        pytest.param(OSError(28, "No space left on device"), "no space left on device", id="no file"),
        pytest.param(OSError("strange"), "strange", id="no number"),
        pytest.param(SyscallError(1, "setns", 5), str(SyscallError(1, "setns", 5)), id="system call"),
        pytest.param(KeyError("gpu"), "KeyError: 'gpu'", id="mistake in the program"),
        pytest.param(errors.UsageError("no such option"), "no such option", id="error without a stage"),
    ],
)
def test_any_other_error_gets_the_stage_of_the_verb(error: BaseException, message: str) -> None:
    for service, verb, kind in ((CONTAINER, "apply", MountError), (CONTAINER, "inspect", ContainerError),
                                (DRIVER, "system", InitializationError), (DRIVER, "gpu", DetectionError)):  # fmt: skip
        found = crossed(error, service, verb)
        assert (kind, message) == (type(found), found.message)


def test_silence_has_a_hint() -> None:
    with pytest.raises(InitializationError) as caught:
        raise_remote(RemoteError("driver", "system", TIMED_OUT, "no answer in 10 s"), DRIVER)
    assert "initialization error: driver rpc error: timed out: system: no answer in 10 s" == str(caught.value)
    assert "nvidia-persistenced" in caught.value.hint and "--timeout" in caught.value.hint


@pytest.mark.parametrize(("service", "verb", "hint"), [(CONTAINER, "apply", "--debug"), (DRIVER, "gpu", "dmesg")])
def test_a_death_has_another(service: HelperService, verb: str, hint: str) -> None:
    with pytest.raises(NvcError) as caught:
        raise_remote(RemoteError(service.name, verb, NOT_PROCESSED, "the helper died"), service)
    text = f"{service.name} rpc error: failed to process request: {verb}: the helper died"
    assert text == caught.value.message
    assert hint in caught.value.hint and "--timeout" not in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="empty"),
        pytest.param({"stage": 1, "message": "x", "hint": ""}, id="stage is a number"),
        pytest.param({"stage": "", "message": None, "hint": ""}, id="no message"),
        pytest.param({"stage": "", "message": "x", "hint": []}, id="hint is a list"),
    ],
)
def test_data_of_a_helper_that_lies_is_not_believed(data: dict[str, Any]) -> None:
    with pytest.raises(DetectionError, match="driver rpc error: failed to process request: gpu: text"):
        raise_remote(RemoteError("driver", "gpu", NOT_PROCESSED, "text", data), DRIVER)


def test_an_unknown_stage_becomes_the_verbs() -> None:
    data = {"stage": "made up", "message": "x", "hint": "h"}
    with pytest.raises(DetectionError, match="detection error: x"):
        raise_remote(RemoteError("driver", "gpu", NOT_PROCESSED, "text", data), DRIVER)


def test_the_cause_is_kept_for_the_debug_log() -> None:
    remote = RemoteError("driver", "gpu", NOT_PROCESSED, "text")
    with pytest.raises(DetectionError) as caught:
        raise_remote(remote, DRIVER)
    assert remote is caught.value.__cause__


def test_handlers_of_the_driver_are_its_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and the service's handlers are the same set; ``start`` refuses anything else."""
    from nvc.base.log import Log
    from nvc.driver import service
    from nvc.model import Host

    seen: list[dict[str, Callable[..., Any]]] = []

    def begin(table: Service, handlers: dict[str, Callable[..., Any]], **_: Any) -> Any:
        assert DRIVER is table
        seen.append(handlers)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(service.process, "start", begin)
    with pytest.raises(InitializationError, match="the driver service cannot be started: too many open files"):
        service.start(Host(), uid=None, gid=None, deadline=1, log=Log.none())
    assert set(DRIVER.methods) == set(seen[0])
