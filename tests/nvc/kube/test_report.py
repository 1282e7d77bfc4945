"""What is reported beside the answers to the kubelet goes on whatever the API server answers."""

from __future__ import annotations

from typing import Any

from nvc.kube.cluster import ClusterError
from nvc.kube.report import Reporter
from tests.support import leftovers


class Server:
    """An API server with one claim. patched: what its status became. conflicts: patches that are refused before."""

    def __init__(self, claim: dict[str, Any], conflicts: int = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.patched: list[dict[str, Any]] = []
        self.asked = 0
        self._claim, self._conflicts = claim, conflicts

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.asked += 1
        return self._claim

    def patch_claim_status(self, namespace: str, name: str, status: dict[str, Any], version: str) -> None:
        self._conflicts -= 1
        if self._conflicts >= 0:
            raise ClusterError("conflict", 409)
        self.patched.append(status)

    def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        self.events.append(body)


def test_an_answer_without_sense_ends_no_report_but_its_own() -> None:
    server: Any = Server({})
    said: list[str] = []
    reporter = Reporter(server, "node", lambda event, **_: said.append(event))

    reporter.ready({}, [{"driver": "nvc.dev"}])
    reporter.refused("default", "claim", "uid", "there is no GPU")

    assert leftovers.until(lambda: bool(server.events), seconds=30)
    assert [event["note"] for event in server.events] == ["there is no GPU"]
    assert said == ["report-failed"]
    reporter.close()


def claim(uid: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "space", "name": "claim", "uid": uid, "resourceVersion": "1"}}


def reported(server: Any) -> None:
    reporter = Reporter(server, "node", lambda *_, **__: None)
    reporter.ready(claim("one"), [{"driver": "nvc.dev"}])
    reporter.close()


def test_a_claim_is_read_again_only_after_a_conflict() -> None:
    for conflicts in (0, 1, 2):
        server: Any = Server(claim("one"), conflicts)
        reported(server)
        assert (server.asked, server.patched) == (conflicts, [{"devices": [{"driver": "nvc.dev"}]}])


def test_another_claim_of_that_name_is_not_written_to() -> None:
    server: Any = Server(claim("two"), 1)
    reported(server)
    assert server.patched == []
