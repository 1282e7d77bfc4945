"""The parts of a pod's start, which tests/kubernetes/test_times.py measures, by lines as containerd 2 writes them."""

from __future__ import annotations

import pytest

from tests.support import start_parts

POD = r"name:\"one\"  uid:\"u1\"  namespace:\"default\""
WORDS = {
    ".010": rf"RunPodSandbox for {POD}",
    ".110": rf"RunPodSandbox for {POD} returns sandbox id \"5a\"",
    ".113": r"CreateContainer within sandbox \"5a\" for container name:\"c0\"",
    ".117": r"CreateContainer within sandbox \"5a\" for name:\"c0\" returns container id \"c7\"",
    ".118": r"StartContainer for \"c7\"",
    ".170": r"StartContainer for \"c7\" returns successfully",
}
BEGUN = 1795723200000.0  # 2026-11-26T20:00:00Z


def log(words: dict[str, str]) -> str:
    return "\n".join(f'time="2026-11-26T20:00:00{at}Z" level=info msg="{one}"' for at, one in words.items())


def test_each_part_begins_where_the_one_before_ends() -> None:
    marks = start_parts.marks(log(WORDS))

    assert list(marks) == ["one"]
    parts = dict(zip(start_parts.PARTS, start_parts.parts(marks["one"], BEGUN, BEGUN + 160), strict=True))
    assert list(parts.values()) == pytest.approx([10, 100, 3, 4, 1, 42], abs=0.01)
    assert parts["RunPodSandbox"] == pytest.approx(100, abs=0.01)
    assert parts["CreateContainer"] == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize("missing", [at for at in WORDS if at != ".170"])
def test_a_pod_without_one_of_the_calls_has_no_parts(missing: str) -> None:
    assert not start_parts.marks(log({at: words for at, words in WORDS.items() if at != missing}))


def test_a_second_sandbox_and_a_second_start_are_not_taken_for_the_first() -> None:
    again = {
        ".200": rf"RunPodSandbox for {POD}  attempt:1",
        ".210": rf"RunPodSandbox for {POD}  attempt:1 returns sandbox id \"6b\"",
        ".220": r"CreateContainer within sandbox \"5a\" for container name:\"c0\"  attempt:1",
        ".230": r"CreateContainer within sandbox \"5a\" for name:\"c0\"  attempt:1 returns container id \"d8\"",
        ".240": r"StartContainer for \"d8\"",
    }

    assert start_parts.marks(log(WORDS | again)) == start_parts.marks(log(WORDS))
