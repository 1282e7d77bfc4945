"""Every key of config.toml has a meaning in ``nvc-py config default``."""

from __future__ import annotations

from nvc.base import config_file
from nvc.cli import config_keys


def test_every_key_that_has_an_effect_has_a_meaning() -> None:
    known = [f"{section}.{key}".lstrip(".") for section, key, _, field in config_file.KEYS if field]
    known += [f"{section}.{key}" for section, keys in config_file.OURS.items() for key in keys]

    assert list(config_keys.MEANINGS) == known
