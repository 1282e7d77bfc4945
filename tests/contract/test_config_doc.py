"""Every key of config.toml has a meaning in ``nvc-py config default``."""

from __future__ import annotations

import re

from nvc.agent import settings
from nvc.base import config_file
from nvc.cli import config_keys
from nvc.request import hook_config
from nvc.share import policy


def test_every_key_that_has_an_effect_has_a_meaning() -> None:
    known = [f"{section}.{key}".lstrip(".") for section, key, _, field in config_file.KEYS if field]
    known += [f"{section}.{key}" for section, keys in config_file.OURS.items() for key in keys]

    assert list(config_keys.MEANINGS) == known


def test_the_sample_means_what_every_reader_does_without_a_file() -> None:
    data = re.sub(r"^#(?! )", "", config_keys.sample(), flags=re.MULTILINE).encode()
    tables, unknown = config_file.tables(data, "sample")

    assert unknown == ()
    assert hook_config.decode(data, "sample") == hook_config.HookConfig()
    assert policy.decode(tables["share"], "sample") == policy.Policy()
    assert settings.decode(tables["agent"], "sample") == settings.AgentSettings()
