"""The whole request of a container that wants a GPU (nvidia-container-toolkit.md 1.6 to 1.9)."""

from __future__ import annotations

import pytest

from hook.config import HookConfig
from hook.environment import items
from hook.request import HookRequest, build, capabilities, imex_channels, requirements
from nvc.base.errors import ImexError, InputError, MigConfigError, MigMonitorError
from nvc.request.capabilities import WORDS

EVERY = tuple(sorted(WORDS))
DEFAULT = ("compute", "utility")
LEGACY = {"CUDA_VERSION": "9.0.176"}
GPU = {"NVIDIA_VISIBLE_DEVICES": "0"}


def request(env: dict[str, str], *, privileged: bool = False, **config: object) -> HookRequest | None:
    return build(env, privileged=privileged, config=HookConfig(**config))


def devices(env: dict[str, str], *mounts: str, privileged: bool = False, **config: object) -> object:
    """The devices asked for, or None."""
    found = build(env, privileged=privileged, config=HookConfig(**config), device_mounts=mounts)
    return None if found is None else found.devices


def test_a_container_that_asks_for_one_gpu() -> None:
    assert HookRequest(("0",), DEFAULT) == request(GPU)


def test_everything_at_once() -> None:
    env = {
        "NVIDIA_VISIBLE_DEVICES": "1,0",
        "NVIDIA_DRIVER_CAPABILITIES": "video,compute",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.0",
        "NVIDIA_REQUIRE_DRIVER": "driver>=535",
        "NVIDIA_MIG_CONFIG_DEVICES": "all",
        "NVIDIA_MIG_MONITOR_DEVICES": "all",
        "NVIDIA_IMEX_CHANNELS": "0,7",
    }

    assert request(env, privileged=True) == HookRequest(
        ("1", "0"), ("compute", "video"), ("cuda>=12.0", "driver>=535"), "all", "all", (0, 7)
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [("csv-mounts=all", True), ("csv-mounts=base-only", False), ("all", False), ("csv-mounts=all,x", False)],
)
def test_jetpack_chooses_mount_lists(value: str, expected: bool) -> None:
    found = request({**GPU, "NVIDIA_REQUIRE_JETPACK": value})
    assert found is not None
    assert found.all_csv is expected
    assert found.requirements == ()


@pytest.mark.parametrize("env", [{}, {"NVIDIA_VISIBLE_DEVICES": "void"}, {"NVIDIA_VISIBLE_DEVICES": ""}])
def test_nothing_asked_is_no_request(env: dict[str, str]) -> None:
    assert request(env) is None


def test_a_request_of_nothing_is_not_checked_further() -> None:
    assert request({"NVIDIA_MIG_CONFIG_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "bogus"}) is None


@pytest.mark.parametrize(
    ("privileged", "accepted", "granted"),
    [(False, True, True), (True, True, True), (True, False, True), (False, False, False)],
)
def test_environment_of_an_unprivileged_container(privileged: bool, accepted: bool, granted: bool) -> None:
    assert granted is (request(GPU, privileged=privileged, accept_env_unprivileged=accepted) is not None)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, DEFAULT, id="unset"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": ""}, DEFAULT, id="empty"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": " , "}, DEFAULT, id="only commas"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": "all"}, EVERY, id="all"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": "utility"}, ("utility",), id="one"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": "utility,compute"}, DEFAULT, id="sorted"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": " video , ngx ,"}, ("ngx", "video"), id="trimmed"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": "compute,compute"}, ("compute",), id="duplicate"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": "compute,all"}, EVERY, id="all among others"),
        pytest.param(LEGACY, EVERY, id="legacy image, unset"),
        pytest.param({**LEGACY, "NVIDIA_DRIVER_CAPABILITIES": ""}, DEFAULT, id="legacy image, empty"),
        pytest.param({**LEGACY, "NVIDIA_DRIVER_CAPABILITIES": "video"}, ("video",), id="legacy image, set"),
    ],
)
def test_capabilities(env: dict[str, str], expected: tuple[str, ...]) -> None:
    assert expected == capabilities(env, WORDS)


@pytest.mark.parametrize(
    ("value", "supported", "expected"),
    [
        pytest.param(None, ("utility",), ("utility",), id="default is cut to what is supported"),
        pytest.param("all", ("video", "compute"), ("compute", "video"), id="all is what is supported"),
        pytest.param("all,video", ("compute",), ("compute",), id="all forgives what is known but not supported"),
        pytest.param("compute", ("video", "compute"), ("compute",), id="a supported one"),
    ],
)
def test_capabilities_of_a_host_that_supports_few(
    value: str | None, supported: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    env = {} if value is None else {"NVIDIA_DRIVER_CAPABILITIES": value}

    assert expected == capabilities(env, supported)


@pytest.mark.parametrize(
    ("value", "supported", "words"),
    [
        pytest.param("bogus", WORDS, "bogus", id="unknown"),
        pytest.param("compute,bogus,utility", WORDS, ": bogus$", id="one of several unknown"),
        pytest.param("Compute", WORDS, "Compute", id="other case"),
        pytest.param("all,bogus", WORDS, ": bogus$", id="unknown beside all"),
        pytest.param("compute,video", ("compute",), ": video$", id="not supported here"),
        pytest.param("none", WORDS, "none", id="none is not a capability"),
    ],
)
def test_capabilities_that_cannot_be_given(value: str, supported: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        capabilities({"NVIDIA_DRIVER_CAPABILITIES": value}, supported)
    assert "unsupported capabilities found in NVIDIA_DRIVER_CAPABILITIES" in caught.value.message
    assert "compute" in caught.value.hint


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, (), id="none"),
        pytest.param({"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"}, ("cuda>=12.0",), id="one"),
        pytest.param(
            {"NVIDIA_REQUIRE_B": "driver>=1", "NVIDIA_REQUIRE_A": "cuda>=2", "NVIDIA_REQUIRE_C": "brand=tesla"},
            ("brand=tesla", "cuda>=2", "driver>=1"),
            id="Q12: sorted",
        ),
        pytest.param({"NVIDIA_REQUIRE_A": "cuda>=2", "NVIDIA_REQUIRE_B": "cuda>=2"}, ("cuda>=2",), id="each once"),
        pytest.param({"NVIDIA_REQUIRE_A": "", "NVIDIA_REQUIRE_B": " "}, (), id="empty ones say nothing"),
        pytest.param({"NVIDIA_REQUIRE_": "cuda>=2"}, ("cuda>=2",), id="empty suffix"),
        pytest.param({"NVIDIA_REQUIRE": "cuda>=99"}, (), id="another variable"),
        pytest.param({"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}, (), id="Jetpack"),
        pytest.param({"NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "base-only"}, (), id="Jetpack with suffix"),
        pytest.param(LEGACY, ("cuda>=9.0",), id="legacy image"),
        pytest.param({"CUDA_VERSION": "v10"}, ("cuda>=10.0",), id="legacy image, v and major alone"),
        pytest.param({"CUDA_VERSION": "11.2"}, ("cuda>=11.2",), id="legacy image, two parts"),
        pytest.param({"CUDA_VERSION": "11.2.0-rc1"}, ("cuda>=11.2",), id="legacy image, release candidate"),
        pytest.param({"CUDA_VERSION": "11.2.0+b.7"}, ("cuda>=11.2",), id="legacy image, build"),
        pytest.param(
            {**LEGACY, "NVIDIA_REQUIRE_DRIVER": "driver>=1"}, ("cuda>=9.0", "driver>=1"), id="legacy image with more"
        ),
        pytest.param({**LEGACY, "NVIDIA_REQUIRE_CUDA": "cuda>=12"}, ("cuda>=12",), id="newer CUDA image"),
        pytest.param({"NVIDIA_REQUIRE_A": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": "1"}, (), id="disabled"),
        pytest.param({"NVIDIA_REQUIRE_A": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": "true"}, (), id="disabled by true"),
        pytest.param({"NVIDIA_REQUIRE_A": "cuda>=9", "NVIDIA_DISABLE_REQUIRE": "yes"}, ("cuda>=9",), id="invalid"),
        pytest.param({"NVIDIA_REQUIRE_A": "cuda>=9", "NVIDIA_DISABLE_REQUIRE": "0"}, ("cuda>=9",), id="not disabled"),
        pytest.param({"CUDA_VERSION": ".".join(["4294967295"] * 3)}, ("cuda>=4294967295.4294967295",), id="32 bits"),
        pytest.param({"CUDA_VERSION": "junk", "NVIDIA_DISABLE_REQUIRE": "1"}, (), id="disabled before looked at"),
    ],
)
def test_requirements(env: dict[str, str], expected: tuple[str, ...]) -> None:
    assert expected == requirements(env)


@pytest.mark.parametrize(
    "version",
    ["junk", "9.x", "9.0.176.1", ".9", "9.", "v", "-1", "4294967296", f"1.2.{2**64}", "9-rc1", "٩.0", "9" * 5000],
)
def test_cuda_version_that_is_none(version: str) -> None:
    with pytest.raises(InputError, match="CUDA_VERSION"):
        requirements({"CUDA_VERSION": version})


def test_configuration_can_drop_requirements() -> None:
    found = request({**GPU, "NVIDIA_REQUIRE_CUDA": "cuda>=99"}, disable_require=True)

    assert found is not None
    assert found.requirements == ()


@pytest.mark.parametrize(
    ("variable", "error"),
    [("NVIDIA_MIG_CONFIG_DEVICES", MigConfigError), ("NVIDIA_MIG_MONITOR_DEVICES", MigMonitorError)],
)
@pytest.mark.parametrize("value", ["all", "0", "x"])
def test_only_a_privileged_container_manages_mig(variable: str, error: type[Exception], value: str) -> None:
    with pytest.raises(error, match=f"{variable} is set in an unprivileged container"):
        request({**GPU, variable: value})

    assert request({**GPU, variable: value}, privileged=True) is not None
    assert request({**GPU, variable: ""}) is not None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("", (), id="empty"),
        pytest.param("0", (0,), id="one"),
        pytest.param("7,0", (7, 0), id="order kept"),
        pytest.param("channel3,4", (3, 4), id="with prefix"),
        pytest.param("1,channel1,01", (1,), id="each once"),
        pytest.param(" 1 ,,2", (1, 2), id="trimmed"),
        pytest.param("1048575", (1048575,), id="largest"),
        pytest.param("all", (), id="all is ignored"),
        pytest.param("0,all", (), id="all among others"),
        pytest.param("none", (), id="Q3: none is none"),
        pytest.param("void", (), id="void"),
        pytest.param("0,void", (), id="void among others"),
    ],
)
def test_imex_channels(value: str, expected: tuple[int, ...]) -> None:
    assert expected == imex_channels(items(value))


@pytest.mark.parametrize("value", ["1048576", "-1", "a", "0x10", "channel", "channelx", "channelchannel1", "1;2", "٣"])
def test_imex_channels_that_cannot_be(value: str) -> None:
    with pytest.raises(ImexError):
        imex_channels(items(value))


def test_configuration_can_ignore_imex() -> None:
    found = request({**GPU, "NVIDIA_IMEX_CHANNELS": "nonsense"}, ignore_imex=True)

    assert found is not None
    assert found.imex == ()


SWARM = {"swarm_resources": ("DOCKER_RESOURCE_GPU", "OTHER")}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({"DOCKER_RESOURCE_GPU": "GPU-1"}, ("GPU-1",), id="one"),
        pytest.param({"OTHER": "1", "DOCKER_RESOURCE_GPU": "0"}, ("0", "1"), id="in the file's order"),
        pytest.param({"DOCKER_RESOURCE_GPU": "0", **GPU, "OTHER": "all"}, ("all",), id="all in one of them"),
        pytest.param({"DOCKER_RESOURCE_GPU": "3", "NVIDIA_VISIBLE_DEVICES": "all"}, ("3",), id="before the image's"),
        pytest.param({"DOCKER_RESOURCE_GPU": "", "NVIDIA_VISIBLE_DEVICES": "all"}, None, id="Q10: empty decides too"),
        pytest.param({"DOCKER_RESOURCE_GPU": "", **LEGACY}, None, id="empty in a legacy image"),
        pytest.param({"DOCKER_RESOURCE_GPU": "void", **GPU}, None, id="void"),
        pytest.param(GPU, ("0",), id="not set"),
    ],
)
def test_swarm_resources_stand_in_for_visible_devices(env: dict[str, str], expected: object) -> None:
    assert expected == devices(env, **SWARM)


@pytest.mark.parametrize(
    ("mounts", "env", "expected"),
    [
        pytest.param(("0", "GPU-1"), {}, ("0", "GPU-1"), id="devices"),
        pytest.param(("0",), {"NVIDIA_VISIBLE_DEVICES": "all"}, ("0",), id="before the environment"),
        pytest.param(("all",), {"NVIDIA_VISIBLE_DEVICES": "void"}, ("all",), id="the environment has no veto"),
        pytest.param(("none",), GPU, (), id="none"),
        pytest.param(("void",), GPU, None, id="void"),
        pytest.param(("imex/3",), GPU, ("0",), id="a channel is not a device"),
        pytest.param(("cdi/broken",), GPU, ("0",), id="nothing that can be read"),
        pytest.param(("cdi/runtime.nvidia.com/gpu/1",), {}, ("1",), id="automatic CDI name"),
    ],
)
def test_volume_mounts_are_asked_first(mounts: tuple[str, ...], env: dict[str, str], expected: object) -> None:
    assert expected == devices(env, *mounts, accept_mounts=True)


def test_volume_mounts_need_no_privilege_and_a_host_that_accepts_them() -> None:
    assert devices(GPU, "1", accept_mounts=True, accept_env_unprivileged=False) == ("1",)
    assert devices(GPU, "1", accept_mounts=False) == ("0",)
    assert devices({}, "1", accept_mounts=False) is None


def test_imex_channels_by_mount_come_before_the_environments() -> None:
    found = build(
        {**GPU, "NVIDIA_IMEX_CHANNELS": "9"},
        privileged=False,
        config=HookConfig(accept_mounts=True),
        device_mounts=("imex/3", "imex/channel4", "0"),
    )

    assert found is not None
    assert (found.devices, found.imex) == (("0",), (3, 4))


def test_environment_without_privilege_asks_for_no_channel_either() -> None:
    found = build(
        {**GPU, "NVIDIA_IMEX_CHANNELS": "9"},
        privileged=False,
        config=HookConfig(accept_mounts=True, accept_env_unprivileged=False),
        device_mounts=("0",),
    )

    assert found is not None
    assert found.imex == ()


def test_what_is_ignored_is_said() -> None:
    said: list[str] = []
    config = HookConfig(accept_env_unprivileged=False)

    assert build(GPU, privileged=False, config=config, device_mounts=("0",), warn=said.append) is None

    assert [words.split(":")[0] for words in said] == [
        "ignoring device requests by volume mounts",
        "the container is not privileged, and this host does not let its environment ask for devices",
    ]


@pytest.mark.parametrize(
    ("value", "config", "expected"),
    [
        ("runtime.nvidia.com/gpu=all", {}, ("all",)),
        ("runtime.nvidia.com/gpu=1,runtime.nvidia.com/gpu=GPU-0", {}, ("1", "GPU-0")),
        ("runtime.nvidia.com/gpu=none", {}, ()),
        ("0", {"mode": "legacy"}, ("0",)),
        ("0", {"mode": "jit-cdi"}, ("0",)),
        ("0", {"mode": "cdi", "skip_mode_detection": True}, ("0",)),
        ("runtime.nvidia.com/gpu=0,1", {}, ("0", "1")),
    ],
)
def test_modes_in_which_the_hook_gives_devices(value: str, config: dict[str, object], expected: object) -> None:
    assert expected == devices({"NVIDIA_VISIBLE_DEVICES": value}, **config)


@pytest.mark.parametrize(
    ("value", "config", "words"),
    [
        ("0", {"mode": "cdi"}, "not supported in mode 'cdi'"),
        ("0", {"mode": "csv"}, "not supported in mode 'csv'"),
        ("nvidia.com/gpu=0", {}, "not supported in mode 'cdi'"),
        ("nvidia.com/gpu=0,vendor.com/net=1", {"container_kinds": ("vendor.com/net",)}, "not supported in mode 'cdi'"),
        ("vendor.com/net=1", {}, "a CDI device that is not NVIDIA's"),
        ("nvidia.com/gpu=0,1", {}, "cannot be mixed"),
        ("nvidia.com/gpu=0", {"mode": "legacy"}, "is a device of a CDI specification"),
    ],
)
def test_modes_in_which_it_does_not(value: str, config: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        devices({"NVIDIA_VISIBLE_DEVICES": value}, **config)


@pytest.mark.parametrize("mode", ["cdi", "csv"])
def test_a_container_that_asks_for_nothing_has_no_mode(mode: str) -> None:
    assert devices({"NVIDIA_VISIBLE_DEVICES": "void"}, mode=mode) is None


def test_a_list_of_a_megabyte_is_read_in_time() -> None:
    value = ",".join(f"GPU-{number:08x}" for number in range(80_000))

    found = devices({"NVIDIA_VISIBLE_DEVICES": value})

    assert isinstance(found, tuple)
    assert len(found) == 80_000
