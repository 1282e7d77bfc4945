"""The question that containers without NVIDIA_VISIBLE_DEVICES are asked before config.toml is parsed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hook import swarm


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        pytest.param('swarm-resource = "GPU"', True, id="set"),
        pytest.param('swarm-resource="OTHER, GPU"', True, id="one of several"),
        pytest.param('swarm-resource = "OTHER"', False, id="another"),
        pytest.param('#swarm-resource = "GPU"', False, id="commented, as shipped"),
        pytest.param('  # swarm-resource = "GPU"', False, id="commented with blanks"),
        pytest.param("mode = true", False, id="not there"),
        pytest.param("swarm-resource = 'OTHER'", True, id="another form is left to the parser"),
        pytest.param('"swarm-resource" = "OTHER"', True, id="a quoted key too"),
        pytest.param('x = true\nswarm-resource = "GPU" # us', True, id="comment behind"),
    ],
)
def test_may_ask(tmp_path: Path, text: str, asked: bool) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)

    assert asked is swarm.may_ask({"GPU": "0"}, str(file), {})


def test_a_file_that_cannot_be_read_stops_no_container_without_a_gpu(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    for name in ("none", "fifo", "."):
        assert not swarm.may_ask({"GPU": "0"}, str(tmp_path / name), {})
    assert not swarm.may_ask({"GPU": "0"}, "", {"XDG_CONFIG_HOME": str(tmp_path)})
