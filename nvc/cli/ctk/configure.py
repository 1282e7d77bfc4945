"""``nvidia-ctk runtime configure``: an engine's files, edited by ``nvc.engines``."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError, UsageError, reason
from nvc.base.nearest import did_you_mean
from nvc.base.progress import waiting
from nvc.cli import runtime
from nvc.cli.ctk.tree import BY_ENGINE, HOOK_PROGRAM, RUNTIME_PROGRAM
from nvc.cli.text import emit
from nvc.engines import edit, hooksd, steps
from nvc.engines.config import EngineConfig, FileEdit, Plan
from nvc.engines.containerd import version
from nvc.engines.files import Files, carry_out, write
from nvc.engines.table import ENGINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.cli.ctk.parse import Values
    from nvc.cli.ctk.show import Log

#: Engine -> the file beside the main one that takes the edits by default.
_DROP_INS = {"containerd": "/etc/containerd/conf.d/99-nvidia.toml"}
#: Engine -> commands that print its settings, the first that works. The first word is replaced by --executable-path.
_DUMPS = {
    "containerd": (("containerd", "config", "dump"),),
    "crio": (("crio", "status", "config"), ("crio-status", "config")),
}
_HOOK_MODES, _FILE_MODES = ("oci-hook", "hook"), ("", "config-file", "config")
#: Seconds for an engine to print its settings.
_DUMP_LIMIT = 30


def configure(values: Values, log: Log) -> int:
    """Add our runtime to an engine, or write an OCI hook's file."""
    mode = values.text("config-mode")
    if mode in _HOOK_MODES:
        return _oci_hook(values, log)
    engine = values.text("runtime")
    if engine not in ENGINES:
        known = f"one of {', '.join(ENGINES)}"
        raise UsageError(f"unrecognized runtime '{engine}'", hint=did_you_mean(engine, ENGINES, otherwise=known))
    if mode not in _FILE_MODES:
        log.warn(f'Ignoring unsupported config mode for {engine}: "{mode}"')
    files = Files()
    config = _config(engine, values, files, log)
    if not values.flag("dry-run"):
        runtime.check(engine, ENGINES[engine], config)

    def make() -> Plan:
        return ENGINES[engine].plan(config, files)

    def wrote(one: FileEdit) -> None:
        log.info(f"Wrote updated config to {one.path}")

    plan = make() if values.flag("dry-run") else carry_out(make, files, wrote)
    for note in plan.notes:
        log.info(note)
    if values.flag("dry-run"):
        _show(plan, files, log)
        return 0
    if not plan.edits:
        log.info(f"Nothing to change in {' and '.join(dict.fromkeys(plan.looked_at))}")
    if plan.reload:
        log.info(f"It is recommended that {engine} daemon be restarted: {plan.reload}")
    return 0


def _config(engine: str, values: Values, files: Files, log: Log) -> EngineConfig:
    row = ENGINES[engine]
    path = values.text("nvidia-runtime-path")
    if path == RUNTIME_PROGRAM:
        path = runtime.program(RUNTIME_PROGRAM)
    elif engine == "docker":
        path = shutil.which(path) or path
    if not path.startswith("/"):
        raise UsageError(f'the NVIDIA runtime path "{path}" is not an absolute path')
    cdi = values.flag("cdi.enabled")
    if cdi and engine not in ("docker", "containerd"):
        log.warn(f"Ignoring cdi.enabled flag for {engine}")
        cdi = False
    main = runtime.absolute(values.text("config") or row.config)
    return EngineConfig(
        name=values.text("nvidia-runtime-name"),
        path=path,
        hook=runtime.program(HOOK_PROGRAM),
        default=values.flag("nvidia-set-as-default"),
        cdi=cdi,
        main_file=main,
        drop_in=_drop_in(engine, values.text("drop-in-config"), main, files),
        hooks_dir=row.hooks_dir,
        effective=_effective(engine, values, log),
    )


def _drop_in(engine: str, value: str, main: str, files: Files) -> str:
    """The file that takes the edits; "" for the main one."""
    if value == BY_ENGINE:
        value = _DROP_INS.get(engine) or ENGINES[engine].drop_in
        # A file of version 1 cannot have the CRI settings in a file of their own.
        if engine == "containerd" and version(edit.read(steps.TOML, files.read(main), main), main) == 1:
            return ""
    elif value and engine == "docker":
        raise UsageError(f"runtime {engine} does not support drop-in configs")
    if value and not value.startswith("/"):
        raise UsageError(f'the drop-in-config path "{value}" is not an absolute path')
    return value


def _effective(engine: str, values: Values, log: Log) -> str:
    """The settings as the engine prints them, "" to go by its files."""
    source, program = values.text("config-source"), values.text("executable-path")
    if source not in ("command", "file"):
        raise UsageError(f"unrecognized Config Source: {source}")
    commands = _DUMPS.get(engine, ())
    if program and not commands:
        log.warn(f'Ignoring executable-path="{program}" flag for {engine}')
    if source == "command" and not commands:
        log.warn(f"A command Config Source is not supported for {engine}; using file")
    if source != "command" or not commands:
        return ""
    failures = []
    for place, command in enumerate(commands):
        words = (program or command[0], *command[1:]) if place == 0 else command
        try:
            return _output(words)
        except NvcError as error:
            failures.append(error.message)
    raise NvcError(
        f"unable to load config for runtime {engine}: {'; '.join(failures)}",
        hint="name the program with --executable-path, or leave --config-source=command away",
    )


def _output(words: Sequence[str]) -> str:
    try:
        with waiting(f"{words[0]} prints its settings"):
            done = subprocess.run(
                words, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=_DUMP_LIMIT
            )
    except OSError as error:
        raise NvcError(f"{words[0]}: {reason(error)}") from error
    except subprocess.TimeoutExpired as error:
        raise NvcError(f"{' '.join(words)} took longer than {_DUMP_LIMIT} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NvcError(f"{' '.join(words)} ended with {done.returncode}{': ' + said[-1] if said else ''}")
    return done.stdout.decode(errors="replace")


def _show(plan: Plan, files: Files, log: Log) -> None:
    """The files as they would be, the one with our entry first, as NVIDIA's command prints them."""
    texts = {one.path: one.after for one in plan.edits}
    for path in reversed(dict.fromkeys((*plan.looked_at, *texts))):
        text = texts.get(path, files.read(path))
        if text is not None:
            log.info(f"{path}:")
            emit(1, text)


def _oci_hook(values: Values, log: Log) -> int:
    log.warn(f'The "{values.text("config-mode")}" config-mode is deprecated')
    hook = values.text("nvidia-runtime-hook-path")
    if not hook.startswith("/"):
        raise UsageError(f'the NVIDIA runtime hook path "{hook}" is not an absolute path')
    if not values.is_set("nvidia-runtime-hook-path"):
        hook = runtime.program(HOOK_PROGRAM)
    text = edit.changed(steps.JSON, "{}\n", hooksd.changes({}, EngineConfig(hook=hook)), "the hook's file")
    output = values.text("oci-hook-path")
    if not output or values.flag("dry-run"):
        emit(1, text)
        return 0
    output = runtime.absolute(output)
    files = Files()
    before = files.read(output)
    if before != text:
        write(FileEdit(output, before, text), files)
    return 0
