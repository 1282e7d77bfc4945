"""Changes of a pod's object, for tables of what pods may try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.cluster import Object

Change = Callable[[Object], None]


def environment(**variables: str) -> Change:
    def change(body: Object) -> None:
        body["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in variables.items()]

    return change


def metadata(kind: str, **values: str) -> Change:
    def change(body: Object) -> None:
        body["metadata"][kind] = {key.replace("__", "/").replace("_", "."): value for key, value in values.items()}

    return change


def container(**fields: Any) -> Change:
    return lambda body: body["spec"]["containers"][0].update(fields)


def whole(**fields: Any) -> Change:
    return lambda body: body["spec"].update(fields)


def volume(path: str, source: Object) -> Change:
    def change(body: Object) -> None:
        body["spec"]["volumes"] = [{"name": "v", **source}]
        body["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]

    return change
