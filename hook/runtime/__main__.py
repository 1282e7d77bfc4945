"""``nvc-runtime``: edit config.json of a container that asks for GPUs, then become the real runtime.

Every command of an engine passes here (create, start, state, kill, delete), so what is imported before the exec is
paid for by all of them.
"""

from __future__ import annotations

import os
import sys

from hook import bundle, environment, swarm
from hook.config import HookConfig, load, rescue
from hook.runtime import command, real, spec
from hook.runtime.journal import Journal
from nvc.base.errors import InputError, NvcError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from hook.runtime.command import Command

#: Exit code of ``edit`` for a container that it does not edit (native/client/client.h).
SKIPPED = 3
#: The mode that a name of this program stands for.
_SUFFIXES = {".legacy": "legacy", ".cdi": "cdi"}


def main(argv: Sequence[str], program: str, own: str) -> int:
    """Run; returns only on failure, 1, or 130 when interrupted. own: the real path of this program."""
    journal = Journal()
    try:
        chosen = command.parse(argv)
        journal.add(chosen.log, as_json=chosen.log_format == "json", level="warning")
        config, problem = _settings(program)
        journal.add(config.runtime_debug, as_json=False, level="debug" if chosen.debug else config.log_level)
        guarded = False
        if chosen.edits:
            guarded = _edit(chosen, spec.read(_directory(chosen)), config, problem, own, journal)
        elif problem is not None:
            journal.warn(str(problem))
        elif chosen.version and not chosen.name:
            _version(program)
        target = real.find(config.runtimes, os.environ.get("PATH", ""), own)
        if chosen.name == command.CHECKPOINT:
            from hook.runtime import checkpoint

            checkpoint.check(target, chosen.options, chosen.container, journal)
        if chosen.executes:
            from hook.runtime import refused

            refused.executed(chosen, config, journal)
        if guarded or chosen.executes:
            _close_entry(guarded, journal)
        journal.debug(f"executing {target}: {' '.join(argv)}")
        real.become(target, argv)
    except NvcError as error:
        return _fail(program, error, journal)
    except KeyboardInterrupt:
        return _interrupted(program, journal)
    except Exception as error:
        from hook.report import internal

        return _fail(program, internal(error), journal)


def edit(argv: Sequence[str], program: str) -> int:
    """``main`` up to the exec, for a process of this program that waits: 0 once its container is guarded; else as that.

    SKIPPED, with nothing done: a container of which something else than a share of the engine's GPUs is to be decided.
    """
    journal = Journal()
    has_begun = False
    try:
        chosen = command.parse(argv)
        config, problem = _settings(program)
        journal.add(chosen.log, as_json=chosen.log_format == "json", level="warning")
        journal.add(config.runtime_debug, as_json=False, level="debug" if chosen.debug else config.log_level)
        if problem is not None or chosen.name not in command.EDITED:
            return SKIPPED
        directory = _directory(chosen)
        content = spec.read(directory)
        if not _only_shares(content, config, directory):
            return SKIPPED
        has_begun = True
        return 0 if _edit(chosen, content, config, problem, "", journal) else SKIPPED
    except NvcError as error:
        return _fail(program, error, journal) if has_begun else SKIPPED
    except KeyboardInterrupt:
        return _interrupted(program, journal)
    except Exception as error:
        from hook.report import internal

        return _fail(program, internal(error), journal)


def outcome() -> int:
    """``edit`` with the command line of this process."""
    return edit(sys.argv[1:], os.path.basename(sys.argv[0]))


def _only_shares(content: dict[str, Any], config: HookConfig, directory: str) -> bool:
    """Whether what the engine wrote gives the container its GPUs, and it asks for no others. Raises InputError."""
    from hook.runtime import hooks
    from hook.runtime.modify import requested_devices

    found = bundle.look(content, directory)
    if not _may_share(content) or hooks.present(content, directory):
        return False
    annotated, asked = requested_devices(found, environment.parse(found.env), config, lambda text: None)
    return asked is None and not annotated


def run() -> NoReturn:
    """Entry point of the command."""
    own = os.path.realpath(sys.argv[0])
    os._exit(main(sys.argv[1:], os.path.basename(sys.argv[0]), own))


def _settings(program: str) -> tuple[HookConfig, InputError | None]:
    """The host's settings, or what can be used of them and what is wrong.

    A broken file must not keep containers from being stopped and deleted, by the runtime that made them.
    """
    try:
        config, problem = load("", os.environ), None
    except InputError as error:
        config, problem = rescue("", os.environ), error
    for suffix, mode in _SUFFIXES.items():
        if program.endswith(suffix):
            config = config.replace(mode=mode)
    return config, problem


def _edit(
    chosen: Command,
    content: dict[str, Any],
    config: HookConfig,
    problem: InputError | None,
    own: str,
    journal: Journal,
) -> bool:
    """Change config.json if the container asks for GPUs. Is it guarded? Raises NvcError: nothing is changed.

    own: "" where another process becomes the runtime: that one alone can refuse it the drivers.
    """
    directory = _directory(chosen)
    found = bundle.look(content, directory)
    env = environment.parse(found.env)
    annotated = any(key.startswith(config.annotation_prefixes) for key, _ in found.annotations)
    asked = annotated or swarm.asked(env, found.device_mounts, "", os.environ)
    from hook.runtime import refused

    if "annotations" in content and (asked or _may_share(content) or _has_hook(content)):
        from hook.runtime.annotated import check

        check(content["annotations"] or {})
    if not asked and not _may_share(content):
        journal.debug("the container asks for no GPU")
        if problem is not None:
            journal.warn(str(problem))
        if own and refused.refuse(content, found, env, config, journal):
            spec.write(directory, content)
        return False
    if problem is not None:
        raise problem
    if config.unknown:
        journal.warn(f"config.toml: unknown keys are ignored: {', '.join(config.unknown)}")
    from hook.runtime import guard

    changed = False
    if asked:
        from hook.runtime.modify import modify

        changed = modify(content, found, env, config, own, directory, journal)
    restores = chosen.name == command.RESTORE
    guarded = guard.add(content, found, env, config, chosen.container, journal, restores=restores)
    if not guarded and own:
        changed = refused.refuse(content, found, env, config, journal) or changed
    if guarded or changed:
        from hook.runtime.joined import join

        join(content, directory)
        spec.write(directory, content)
    return guarded


def _directory(chosen: Command) -> str:
    # Joined, not normalised: ".." behind a link is where the kernel says it is.
    return chosen.bundle if chosen.bundle.startswith("/") else os.path.join(_here(), chosen.bundle)


def _has_hook(content: dict[str, Any]) -> bool:
    """Whether one of its hooks may be of nvc-py or NVIDIA's: their output is the runtime's to direct."""
    hooks = str(content.get("hooks"))
    return "nvc" in hooks or "nvidia" in hooks


def _may_share(content: dict[str, Any]) -> bool:
    """Whether a hook may give a share of GPUs, of the engine's (CDI) or of its own: cheap, and yes rather than no."""
    hooks = content.get("hooks")
    stages = [stage for stage in hooks.values() if isinstance(stage, list)] if isinstance(hooks, dict) else []
    entries = [entry for stage in stages for entry in stage if isinstance(entry, dict)]
    words = [word for entry in entries for key in ("args", "env") for word in _list(entry.get(key))]
    if any(isinstance(word, str) and word.startswith(f"{swarm.DEVICES}=") for word in words):
        return True
    # A shell's command is one word.
    parts = {part.strip("\"';") for word in words if isinstance(word, str) for part in word.split()}
    return bundle.SHARE_HOOK in parts or bundle.MEMORY_HOOK in parts


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _here() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise InputError(f"working directory: {reason(error)}", hint="name the bundle with --bundle") from error


def _close_entry(guarded: bool, journal: Journal) -> None:
    """A process that is put into a container later may be of a guarded one. Raises NvcError where it is known to be."""
    from hook.runtime import entry32

    try:
        entry32.close()
    except NvcError as error:
        if guarded:
            raise
        journal.debug(str(error))


def _version(program: str) -> None:
    from hook.report import write
    from nvc import __version__

    write(1, f"{program} (nvc-py) version {__version__}\nspec: 1.2.0\n\n")


def _interrupted(program: str, journal: Journal) -> int:
    _fail(program, NvcError("interrupted"), journal)
    return 130


def _fail(program: str, error: NvcError, journal: Journal) -> int:
    from hook import report

    journal.error(report.sentence(program, error))
    report.to_stderr(program, error)
    return 1


if __name__ == "__main__":
    run()
