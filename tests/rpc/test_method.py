"""Tables of verbs."""

from __future__ import annotations

import pytest

from rpc.method import Method, Service
from tests.support.demo_service import METHODS, SERVICE, Answer, Question


def test_a_service_finds_its_verbs_by_name() -> None:
    assert list(METHODS) == list(SERVICE.methods.values())
    assert ["double", "run", "give"] == list(SERVICE.methods)


def test_a_verb_takes_no_descriptors_unless_its_row_says_so() -> None:
    plain = Method("plain", Question, Answer)
    assert (0, 0) == (plain.request_fds, plain.reply_fds)


def test_two_rows_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="service twice has two verbs double"):
        Service("twice", [METHODS[0], METHODS[0]])


def test_rows_show_themselves() -> None:
    assert "Method(double: Question -> Answer)" == repr(METHODS[0])
    assert "Service(demo: double, run, give)" == repr(SERVICE)
