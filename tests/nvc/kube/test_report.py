"""What is told beside the answers to the kubelet goes on whatever the API server answers."""

from __future__ import annotations

from typing import Any

from nvc.kube.report import Reporter
from tests.support import leftovers


class Nonsense:
    """An API server whose claims are no objects."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        return {}

    def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        self.events.append(body)


def test_an_answer_without_sense_ends_no_report_but_its_own() -> None:
    server: Any = Nonsense()
    said: list[str] = []
    reporter = Reporter(server, "node", lambda event, **_: said.append(event))

    reporter.ready("default", "claim", [{"driver": "nvc.dev"}])
    reporter.refused("default", "claim", "uid", "there is no GPU")

    assert leftovers.until(lambda: bool(server.events), seconds=5)
    assert [event["note"] for event in server.events] == ["there is no GPU"]
    assert said == ["report-failed"]
    reporter.close()
