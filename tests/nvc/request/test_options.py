"""Option strings of the library's functions: the table and the vectors of libnvidia-container.md 2.2.1."""

from __future__ import annotations

import pytest

from nvc.base.errors import ContainerError, DetectionError, InitializationError, NvcError
from nvc.model import DriverOptions
from nvc.request.capabilities import WORDS
from nvc.request.options import (
    DEFAULT_CONTAINER_OPTIONS,
    DRIVER_OPTIONS,
    ContainerOptions,
    LibraryOptions,
    container_options,
    driver_options,
    library_options,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", LibraryOptions(), id="nothing"),
        pytest.param("load-kmods", LibraryOptions(load_kmods=True), id="load-kmods"),
        pytest.param(
            "  no-create-imex-channels   load-kmods ",
            LibraryOptions(load_kmods=True, no_create_imex_channels=True),
            id="in-any-order",
        ),
    ],
)
def test_library_options(text: str, expected: LibraryOptions) -> None:
    assert library_options(text.split()) == expected


@pytest.mark.parametrize("name", DRIVER_OPTIONS)
def test_each_driver_option_sets_its_field_only(name: str) -> None:
    assert driver_options([name]) == DriverOptions(**{name.replace("-", "_"): True})


def test_the_driver_options_are_the_fields() -> None:
    # mps_user comes from the configuration.
    assert sorted([*DRIVER_OPTIONS.values(), "mps_user"]) == sorted(DriverOptions._fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "standalone no-cgroups no-devbind utility",
            DEFAULT_CONTAINER_OPTIONS,
            id="default-string",
        ),
        pytest.param("supervised", ContainerOptions(supervised=True), id="supervised"),
        pytest.param(
            "compute utility video graphics display ngx compat32 no-cgroups no-devbind supervised",
            ContainerOptions(
                supervised=True,
                no_cgroups=True,
                no_devbind=True,
                capabilities=("compute", "utility", "video", "graphics", "display", "ngx", "compat32"),
            ),
            id="the-command-line's-longest",
        ),
        pytest.param("standalone video video", ContainerOptions(supervised=False, capabilities=("video",)), id="twice"),
        pytest.param(
            "supervised no-cntlibs", ContainerOptions(supervised=True, compat_mode="disabled"), id="no-cntlibs"
        ),
        pytest.param(
            "supervised cuda-compat-mode=ldconfig",
            ContainerOptions(supervised=True, compat_mode="ldconfig"),
            id="compat-ldconfig",
        ),
        pytest.param(
            "supervised cuda-compat-mode=mount cuda-compat-mode=ldconfig no-cntlibs",
            ContainerOptions(supervised=True, compat_mode="disabled"),
            id="disabled-wins-silently",
        ),
    ],
)
def test_container_options(text: str, expected: ContainerOptions) -> None:
    assert container_options(text.split()) == expected


@pytest.mark.parametrize(
    ("function", "error", "text", "message"),
    [
        pytest.param(library_options, InitializationError, "no-uvm", "invalid option: no-uvm", id="library-unknown"),
        pytest.param(driver_options, DetectionError, "compute", "invalid option: compute", id="driver-unknown"),
        pytest.param(driver_options, DetectionError, "x" * 256, "too many options", id="256-bytes"),
        pytest.param(driver_options, DetectionError, "é" * 128, "too many options", id="bytes-count-not-letters"),
        pytest.param(
            container_options,
            ContainerError,
            "utility,compute",
            "invalid option: utility,compute",
            id="commas-do-not-separate",
        ),
        pytest.param(container_options, ContainerError, "Utility", "invalid option: Utility", id="case-matters"),
        pytest.param(container_options, ContainerError, "utility", "invalid mode of operation", id="no-mode"),
        pytest.param(
            container_options, ContainerError, "supervised standalone", "invalid mode of operation", id="both-modes"
        ),
        pytest.param(
            container_options,
            ContainerError,
            "supervised cuda-compat-mode=fast",
            "invalid option: cuda-compat-mode=fast",
            id="unknown-compat-mode",
        ),
        pytest.param(
            container_options,
            ContainerError,
            "supervised cuda-compat-mode=mount cuda-compat-mode=ldconfig",
            "only one cuda-compat-mode can be specified at a time",
            id="two-compat-modes",
        ),
    ],
)
def test_refused(function: object, error: type[NvcError], text: str, message: str) -> None:
    with pytest.raises(error) as caught:
        function(text.split())  # type: ignore[operator]
    assert message == caught.value.message


def test_255_bytes_are_not_too_many() -> None:
    with pytest.raises(DetectionError, match=r"invalid option: x+$"):
        driver_options(["x" * 255])


def test_every_capability_is_a_container_option() -> None:
    assert container_options(["supervised", *WORDS]).capabilities == WORDS
