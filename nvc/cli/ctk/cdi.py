"""``nvidia-ctk cdi``: specs of ``nvc.cdi``, made as ``nvc-py cdi`` makes them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from nvc.base.errors import InputError, NvcError, UsageError, reason
from nvc.base.nearest import did_you_mean
from nvc.cdi import files, text
from nvc.cdi.generate import HOOKS, STRATEGIES, GenerateOptions
from nvc.cdi.rules import name_problem
from nvc.cdi.spec import decode
from nvc.cdi.transform import RELATIVE_TO, transform_root
from nvc.cli import cdi
from nvc.cli.ctk.config import driver_root
from nvc.cli.ctk.tree import CSV_FILES, FEATURE_FLAGS
from nvc.cli.runtime import program
from nvc.cli.settings import Settings
from nvc.cli.text import emit
from nvc.model import DriverOptions

if TYPE_CHECKING:
    from nvc.cdi.spec import CdiSpec
    from nvc.cli.ctk.parse import Values
    from nvc.cli.ctk.show import Log

#: The device without a GPU.
_NONE = "none"
#: The feature flag that leaves the sockets of the driver's daemons out.
_NO_SOCKETS = "disable-ipc-discoverer"
#: The feature flag that leaves the groups of device nodes out.
_NO_GROUPS = "no-additional-gids-for-device-nodes"
#: The feature flag that has a device say whether its memory is coherent with the processor's.
_ANNOTATIONS = "enable-coherent-annotations"


def generate(values: Values, log: Log) -> int:
    """Make the spec of this machine."""
    output, form = _target(values, log)
    for strategy in values.items("device-name-strategy"):
        if strategy not in STRATEGIES:
            hint = did_you_mean(strategy, STRATEGIES, otherwise=f"one of {', '.join(STRATEGIES)}")
            raise UsageError(f"invalid device name strategy: {strategy}", hint=hint)
    for kind, name in (("vendor", values.text("vendor")), ("class", values.text("class"))):
        problem = name_problem(kind, name)
        if problem:
            raise UsageError(f"invalid CDI {kind} name: {problem}")
    enabled = values.items("enable-hook")
    if "all" in enabled:
        raise UsageError("enabling all hooks is not supported")
    if "chmod" in enabled:
        raise UsageError("--enable-hook=chmod: no specification of ours has this hook", hint="crun 1.5 needs none")
    flags = values.items("feature-flag")
    if _ANNOTATIONS in flags:
        raise UsageError(f"--feature-flag={_ANNOTATIONS}: specifications of ours have no annotations")
    compat = values.text("csv.compat-container-root")
    if compat and not compat.startswith("/"):
        raise UsageError(f"--csv.compat-container-root: {compat} is not an absolute path")
    for flag in flags:
        if flag not in FEATURE_FLAGS:
            log.warn(f"Ignoring unknown feature flag: {flag}")
    ldconfig = values.text("ldconfig-path")
    if ldconfig and not ldconfig.removeprefix("@").startswith("/"):
        raise UsageError(f"--ldconfig-path: {ldconfig} is not an absolute path", hint="hooks refuse it at every start")
    devices = values.items("device-id")
    no_all = values.flag("no-all-device")
    if _NONE in devices:
        raise UsageError("--device-id=none names no device", hint="leave the option away, or name a device")
    options = GenerateOptions(
        strategies=values.items("device-name-strategy"),
        vendor=values.text("vendor"),
        device_class=values.text("class"),
        hook_path=_hook(values.text("nvidia-cdi-hook-path")),
        ldconfig=ldconfig,
        all_device=not no_all,
        disabled_hooks=_disabled(values.items("disable-hook"), enabled),
        additional_gids=_NO_GROUPS not in flags,
        compat=compat,
    )
    no_sockets = _NO_SOCKETS in flags
    driver = DriverOptions(no_mps=no_sockets, no_persistenced=no_sockets, no_fabricmanager=no_sockets)
    searched = values.items("library-search-path"), values.items("config-search-path"), _lists(values)
    settings = cdi.searched(_settings(values), values.text("dev-root"), *searched)
    settings = settings.replace(ignored_links=values.items("csv.ignore-pattern"))
    spec = cdi.make(settings, values.text("mode").lower(), options, devices, driver)
    if output:
        files.save(output, text.write(spec, form))
    else:
        emit(1, text.write(spec, form))
    log.info(f"Generated CDI spec with version {spec.version}")
    return 0


def list_devices(values: Values, log: Log) -> int:
    """Name every device that an engine can find."""
    found = files.listing(files.find(values.items("spec-dir")))
    if found.warnings:
        log.warn("The following registry errors were reported:")
    for warning in found.warnings:
        log.warn(warning)
    log.info(f"Found {len(found.names)} CDI devices")
    emit(1, "".join(f"{name}\n" for name in found.names))
    return 0


def transform_root_of(values: Values, log: Log) -> int:
    """Replace the root of a spec's paths."""
    relative_to = values.text("relative-to")
    if relative_to not in RELATIVE_TO:
        hint = did_you_mean(relative_to, RELATIVE_TO, otherwise=f"one of {', '.join(RELATIVE_TO)}")
        raise UsageError(f"invalid --relative-to value: {relative_to}", hint=hint)
    spec = _read(values.text("input"))
    changed = transform_root(spec, values.text("from"), values.text("to"), relative_to)
    output = values.text("output")
    if output:
        path, form = _named(output, "yaml")
        files.save(path, text.write(changed, form))
    else:
        emit(1, text.write(changed, "yaml"))
    return 0


def _lists(values: Values) -> tuple[str, ...]:
    """The mount lists that are named; () for the base set."""
    named = values.items("csv.file")
    return () if named == CSV_FILES else named


def _target(values: Values, log: Log) -> tuple[str, str]:
    """The file to write ("" for standard output) and its format."""
    form = values.text("format").lower()
    if form not in text.FORMATS:
        hint = did_you_mean(form, text.FORMATS, otherwise=f"one of {', '.join(text.FORMATS)}")
        raise UsageError(f"invalid output format: {form}", hint=hint)
    output = values.text("output")
    by_name = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(os.path.splitext(output)[1].lower(), "")
    if by_name and not values.is_set("format"):
        form = by_name
    elif by_name and by_name != form:
        log.warn(f'Requested output format "{form}" does not match format implied by output file name: "{by_name}"')
    return _named(output, form)


def _named(output: str, form: str) -> tuple[str, str]:
    """The file's name with an ending that engines read, which says the format."""
    if not output:
        return "", form
    if not files.form_of(output):
        output = f"{output}.{form}"
    return output, files.form_of(output)


def _disabled(disabled: tuple[str, ...], enabled: tuple[str, ...]) -> tuple[str, ...]:
    """The hooks that are left out. Unknown names count for nothing, as a spec may be made for a newer toolkit."""
    every = HOOKS if "all" in disabled else disabled
    return tuple(name for name in every if name not in enabled)


def _hook(path: str) -> str:
    """The program that hooks start: ours that carries out all of a container's hooks in one start, unless another is
    named."""
    if not path:
        return cdi.find_hook()
    return path if path.startswith("/") else program(path)


def _settings(values: Values) -> Settings:
    simulated = values.text("sim")
    if simulated:
        return Settings(sim=simulated)
    root = values.text("driver-root") or driver_root(values.text("config"))
    return Settings(root=root or "/")


def _read(path: str) -> CdiSpec:
    if path == "-":
        data = sys.stdin.buffer.read(text.SIZE_LIMIT + 1)
    else:
        from nvc.driver.locate import read_bytes

        try:
            data = read_bytes(path, text.SIZE_LIMIT)
        except OSError as error:
            raise NvcError(f"failed to load CDI specification: {path}: {reason(error)}") from error
    spec, problems = decode(text.read(data, "json" if path.endswith(".json") else "yaml"))
    if spec is None:
        raise InputError(f"failed to load CDI specification: {'; '.join(map(str, problems))}")
    return spec
