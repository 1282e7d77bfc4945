"""The stand-in for the library has the library's shape, so that what these tests show holds for ``nvc.inject.api``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from nvc.inject import api
from tests.support import library


def methods(cls: type) -> dict[str, list[str]]:
    """Public methods with the names of their parameters."""
    return {
        name: list(inspect.signature(value).parameters)
        for name, value in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("fake", "real"),
    [
        pytest.param(library.FakeContext, api.Context, id="context"),
        pytest.param(library.FakeSession, api.ContainerSession, id="session"),
    ],
)
def test_methods_take_the_same(fake: type, real: type) -> None:
    ours, theirs = methods(fake), methods(real)
    assert ours == {name: theirs.get(name) for name in ours}
    assert isinstance(inspect.getattr_static(api.ContainerSession, "plan"), property)


def test_a_context_is_made_from_the_same() -> None:
    parameters: dict[str, Any] = dict(inspect.signature(api.Context).parameters)
    assert list(inspect.signature(library.FakeLibrary.Context).parameters)[1:] == list(parameters)
    assert callable(api.require_rights)
