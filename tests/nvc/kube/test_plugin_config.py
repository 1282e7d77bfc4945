"""NVIDIA's configuration files are understood, or refused with the place of what is not."""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.kube.plugin_config import GPU, PluginConfig, Replicated, equal, parse

#: README of NVIDIA's k8s-device-plugin, "Shared Access to GPUs with CUDA Time-Slicing".
SAMPLE = b"""
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""
#: The same README, "As a configuration file", with every flag.
WHOLE = b"""
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
"""


def said(body: str) -> PluginConfig:
    return parse(body.encode(), "plugin.yaml")


def slicing(row: str, more: str = "") -> str:
    return f"sharing: {{timeSlicing: {{{more} resources: [{{{row}}}]}}}}"


def test_nvidias_sample() -> None:
    assert PluginConfig(replicated=(Replicated(GPU, 4),)) == parse(SAMPLE, "plugin.yaml")


def test_every_flag_of_nvidias_file() -> None:
    found = parse(WHOLE, "plugin.yaml")
    assert PluginConfig(notes=found.notes) == found
    assert ["flags.plugin.deviceListStrategy"] == [note.partition(":")[0] for note in found.notes]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{}", PluginConfig()),
        (slicing("name: gpu, replicas: 2"), PluginConfig(replicated=(Replicated(GPU, 2),))),
        (
            slicing("name: nvidia.com/gpu, replicas: 2", "renameByDefault: true, failRequestsGreaterThanOne: true,"),
            PluginConfig(replicated=(Replicated(GPU, 2, f"{GPU}.shared"),), only_one=True),
        ),
        (
            slicing("name: nvidia.com/gpu, rename: nvidia.com/part, replicas: 3, devices: 2"),
            PluginConfig(replicated=(Replicated(GPU, 3, "nvidia.com/part", count=2),)),
        ),
        (
            slicing('name: nvidia.com/gpu, rename: part, replicas: 3, devices: [0, "1:0", GPU-1]'),
            PluginConfig(replicated=(Replicated(GPU, 3, "nvidia.com/part", ("0", "1:0", "GPU-1")),)),
        ),
        ("flags: {migStrategy: mixed, failOnInitError: false}", PluginConfig(mig_strategy="mixed", wait=True)),
        ("flags: {plugin: {deviceListStrategy: cdi-annotations}}", PluginConfig(by_annotation=True)),
        ("flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}", PluginConfig()),
        (
            "flags: {plugin: {deviceListStrategy: [cdi-annotations], cdiAnnotationPrefix: cdi.example.com/}}",
            PluginConfig(by_annotation=True, prefix="cdi.example.com/"),
        ),
        ("flags: {gfd: {oneshot: true}, plugin: {passDeviceSpecs: true, deviceIDStrategy: index}}", PluginConfig()),
        ("sharing: {mps: null, timeSlicing: null}", PluginConfig()),
    ],
)
def test_what_a_file_says(body: str, expected: PluginConfig) -> None:
    assert expected == said(body)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("version: v2", "version"),
        ("[]", "the file"),
        ("flags: 3", "flags"),
        ("flag: {}", "flag"),
        ("flags: {migStrategie: none}", "flags.migStrategie"),
        ("flags: {migStrategy: all}", "flags.migStrategy"),
        ("flags: {failOnInitError: 'true'}", "flags.failOnInitError"),
        ("flags: {gdsEnabled: true}", "flags.gdsEnabled"),
        ("flags: {plugin: {deviceListStrategy: volume-mounts}}", "flags.plugin.deviceListStrategy"),
        ("flags: {plugin: {deviceListStrategy: cdi}}", "flags.plugin.deviceListStrategy"),
        ("flags: {plugin: {deviceListStrategy: 1}}", "flags.plugin.deviceListStrategy"),
        ("flags: {plugin: {deviceIDStrategy: bus}}", "flags.plugin.deviceIDStrategy"),
        ("flags: {plugin: {cdiAnnotationPrefix: 'a b'}}", "flags.plugin.cdiAnnotationPrefix"),
        ("flags: {plugin: {passDeviceSpecs: 1}}", "flags.plugin.passDeviceSpecs"),
        ("flags: {plugin: {cdiFeatureFlags: [x]}}", "flags.plugin.cdiFeatureFlags"),
        ("imex: {channelIDs: [0]}", "imex.channelIDs"),
        ("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", "sharing.mps"),
        ("sharing: {timeSlicing: {}}", "sharing.timeSlicing.resources"),
        ("sharing: {timeSlicing: {strategy: packed, resources: []}}", "sharing.timeSlicing.strategy"),
        (slicing("replicas: 2"), "sharing.timeSlicing.resources[0].name"),
        (slicing("name: nvidia.com/gpu"), "sharing.timeSlicing.resources[0].replicas"),
        (slicing("name: nvidia.com/gpu, replicas: 1"), "sharing.timeSlicing.resources[0].replicas"),
        (slicing("name: nvidia.com/gpu, replicas: true"), "sharing.timeSlicing.resources[0].replicas"),
        (slicing("name: nvidia.com/gpu, replicas: 9999999999"), "sharing.timeSlicing.resources[0].replicas"),
        (slicing("name: nvidia.com/a/b, replicas: 2"), "sharing.timeSlicing.resources[0].name"),
        (slicing(f"name: nvidia.com/{'a' * 53}, replicas: 2"), "sharing.timeSlicing.resources[0].name"),
        (slicing("name: nvidia.com/gpu, replicas: 2, devices: some"), "sharing.timeSlicing.resources[0].devices"),
        (slicing("name: nvidia.com/gpu, replicas: 2, devices: 0"), "sharing.timeSlicing.resources[0].devices"),
        (slicing("name: nvidia.com/gpu, replicas: 2, devices: [x]"), "sharing.timeSlicing.resources[0].devices"),
        (slicing("name: nvidia.com/gpu, replicas: 2}, {name: gpu, replicas: 3"), "sharing.timeSlicing.resources"),
        ("a: 1\na: 2", "line 2"),
        ("a: [", "line 1"),
        ("\x00", "not YAML"),
    ],
)
def test_what_is_refused_names_its_place(body: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        said(body)
    assert refused.value.message.startswith(f"plugin.yaml: {place}:")


def test_the_options_say_the_same_as_a_file() -> None:
    assert parse(SAMPLE, "") == equal(4)
    assert PluginConfig() == equal(1)
    assert said(slicing("name: gpu, rename: nvidia.com/part, replicas: 2")) == equal(2, "nvidia.com/part")
    for replicas, resource in ((0, GPU), (5000, GPU), (1, "nvidia.com/part"), (2, "a b")):
        with pytest.raises(InputError):
            equal(replicas, resource)
