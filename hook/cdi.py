"""``nvc-cdi-hook NAME [OPTION...] [then NAME [OPTION...]]...``: the hooks that CDI specs of ours name.

Called as nvidia-cdi-hook or as ``nvidia-ctk hook`` it reads its words as that program does (version 1.20): switches
``--debug`` and ``--quiet`` anywhere, commas in lists, the last value of an option counts.

An engine puts them into the container's configuration, and the runtime starts them at createContainer with the
container's state on stdin (``apply-cuda-memory-limits`` at createRuntime). Names and options are those of
nvidia-cdi-hook, so that its specs work with this program.
"""

from __future__ import annotations

import os
import sys

from hook import bundle, environment, process, state
from hook.arguments import seconds
from hook.cdi_words import (
    CDI_HOOK,
    COMPAT,
    DEBUG_VARIABLES,
    MEMORY,
    PROGRAM,
    STATE,
    THEIRS,
    TIMEOUT,
    read,
    split,
    switches,
    usage,
)
from nvc.base.errors import InputError, NvcError, UsageError, reason
from nvc.base.gobool import TRUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from nvc.base.log import Log

    Call = tuple[str, tuple[Any, ...]]
    Values = dict[str, list[str]]

#: Functions of ``nvc.cdi.hooks`` of which neither ldconfig nor the making of links sees anything, nor they of those.
_BESIDE_LDCONFIG = (bundle.SHARE_HOOK, "disable_device_node_modification", "update_application_profile")


def main(argv: Sequence[str], stdin: int = 0, *, program: str = PROGRAM) -> int:
    """Run hooks on this process's stdin; 0: done or nothing to do, 1: failed, 2: wrong usage, 130: interrupted.

    program: the name that it is called by, PROGRAM or one of THEIRS. Wrong usage is 1 under those.
    """
    debug = program in THEIRS and any(os.environ.get(name) in TRUE for name in DEBUG_VARIABLES)
    # At createContainer environment and working directory can be the container's.
    process.sanitise(trusted=False)
    return serve([*(["--debug"] if debug else []), *argv], stdin, program=program)


def serve(argv: Sequence[str], stdin: int = 0, *, program: str = PROGRAM) -> int:
    """``main`` in a clean process."""
    debug = ""
    try:
        theirs = program in THEIRS
        words, debug = switches(argv) if theirs else (list(argv), "")
        if (not words and not theirs) or words[:1] in (["-h"], ["-help"], ["--help"], ["help"]):
            process.say(1 if words else 2, usage(program))
            return 0 if words else 2
        if words[:1] in (["-v"], ["-version"], ["--version"]):
            from nvc import __version__

            process.say(1, f"{program} (nvc-py) version {__version__}\n")
            return 0
        steps = _steps(words, theirs=theirs)
        debug = next((values["debug"][-1] for _, values in steps if "debug" in values), debug)
        if [name for name, _ in steps if name != "noop"]:
            _run(steps, words, debug, stdin)
    except UsageError as error:
        process.fail(program, error, "")
        process.say(2, f"Try `{program} --help' for more information.\n")
        return 1 if program in THEIRS else 2
    except NvcError as error:
        return process.fail(program, error, debug)
    except KeyboardInterrupt:
        process.fail(program, NvcError("interrupted"), debug)
        return 130
    except Exception as error:
        from hook.report import internal

        return process.fail(program, internal(error), debug)
    return 0


def outcome() -> int:
    """Run the command line of this process; its exit code."""
    name = sys.argv[0].rpartition("/")[2]
    return main(sys.argv[1:], program=name if name == CDI_HOOK else PROGRAM)


def run() -> NoReturn:
    """Entry point of the command: ends without tearing the interpreter down."""
    os._exit(outcome())


def run_words(words: Sequence[str], text: bytes, log: Log) -> None:
    """Run the hooks of a command line that this program has read, in the container's mount namespace. Raises NvcError.

    text: the container's state.
    """
    process.clean_environment(trusted=False)
    steps = _steps(words)
    _work(steps, *_calls(steps), state.decode(text), log)


def _steps(words: Sequence[str], *, theirs: bool = False) -> list[tuple[str, Values]]:
    parts = [read(part, theirs=theirs) for part in split(words)]
    return [(name, values) for name, values in parts if name]


def _calls(steps: list[tuple[str, Values]]) -> tuple[float, list[Call]]:
    """Seconds of every wait, and functions of ``nvc.cdi.hooks`` with their arguments. Raises UsageError."""
    waits = [seconds(values["timeout"][-1]) for _, values in steps if "timeout" in values]
    calls = [(name.replace("-", "_"), _ARGUMENTS[name](values)) for name, values in steps if name in _ARGUMENTS]
    return waits[-1] if waits else TIMEOUT, calls


def _run(steps: list[tuple[str, Values]], words: Sequence[str], debug: str, stdin: int) -> None:
    # Before anything is done.
    timeout, calls = _calls(steps)
    if any(name == MEMORY for name, _ in steps):
        if len(calls) > 1:
            raise UsageError(f"{MEMORY} is of another stage than the other hooks: start it alone")
        _limit_memory(calls[0][1], state.decode(state.read(stdin, timeout)), timeout, debug)
        return
    text = _state(steps, stdin, timeout)
    current = state.decode(text)
    state.require_inside(current, "hooks of CDI specs belong to the stage createContainer")
    from nvc.base.log import open_log
    from nvc.cdi import worker

    log = open_log(debug)
    worker.run(
        # In the worker, which is forked: what this process touches before is copied twice.
        lambda: _work(steps, timeout, calls, current, log),
        timeout,
        ldconfig=any(function == "update_ldcache" for function, _ in calls),
        asked=worker.Asked(tuple(words), text.decode("latin-1")),
        log=log,
    )


def _work(steps: list[tuple[str, Values]], timeout: float, calls: list[Call], current: state.State, log: Log) -> None:
    from nvc.cdi import hooks

    shared = [values for name, values in steps if name == bundle.SHARE_HOOK]
    final = tuple(text for values in shared for text in values.get(bundle.FIXED, ()))
    config = _Config(current)
    fields, spec = _share_fields(config, final) if shared else ((), "")
    target = hooks.HookTarget(_rootfs(config), timeout, current.id, *fields)

    def do(some: Sequence[Call]) -> None:
        for function, given in some:
            arguments = (given[0] or spec, *given[1:]) if function == bundle.SHARE_HOOK else given
            getattr(hooks, function)(target, *arguments, log)

    before, updates, beside, after = _arranged(calls)
    do(before)
    for _, (folders, ldconfig) in updates:
        hooks.update_ldcache(target, folders, ldconfig, log, lambda: do(beside))
    do(after)


def _arranged(calls: Sequence[Call]) -> tuple[Sequence[Call], Sequence[Call], Sequence[Call], Sequence[Call]]:
    """In their order: those before the first update of the loader cache; that one, if there is one; what is done while
    its ldconfig runs; those after it.
    """
    first = next((at for at, (function, _) in enumerate(calls) if function == "update_ldcache"), None)
    if first is None:
        return calls, (), (), ()
    beside = [call for call in calls if call[0] in _BESIDE_LDCONFIG]
    before, after = ([call for call in some if call not in beside] for some in (calls[:first], calls[first + 1 :]))
    return before, calls[first : first + 1], beside, after


class _Config:
    """The config.json of the container's bundle, read once, when it is asked for."""

    def __init__(self, current: state.State) -> None:
        self.state = current
        self._content: dict[str, Any] = {}
        self._bundle: bundle.Bundle | None = None

    def read(self) -> tuple[dict[str, Any], bundle.Bundle]:
        """All of it, and what is used of it. Raises InputError."""
        if self._bundle is None:
            path = self.state.bundle
            self._content = bundle.parse(bundle.read(path), path)
            self._bundle = bundle.look(self._content, path)
        return self._content, self._bundle


def _state(steps: list[tuple[str, Values]], stdin: int, timeout: float) -> bytes:
    """The container's state, from the file that --container-spec names, or from standard input. Raises InputError."""
    path = next((_last(values, STATE) for _, values in steps if STATE in values), "")
    if path in ("", "-"):
        return state.read(stdin, timeout)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"--{STATE} {path}: {reason(error)}") from error
    try:
        return state.read(descriptor, timeout)
    finally:
        os.close(descriptor)


def _limit_memory(arguments: tuple[object, ...], current: state.State, timeout: float, debug: str) -> None:
    """Every entry of the container's hooks makes the same share, of the GPUs of all of them. Raises NvcError."""
    config, found = _Config(current).read()
    variables = environment.parse(found.env)
    from nvc.base.log import open_log
    from nvc.cdi import memory_limits

    log = open_log(debug)
    if bundle.fixed(config, "", current.bundle):
        log.info(f"{MEMORY}: the container's settings are fixed, and its variables do not count")
        return
    if not memory_limits.limit(variables, log):
        return
    from nvc.cdi.hooks import HookTarget

    own, driver_root, simulated, rules = arguments
    assert isinstance(own, list)
    share = dict(found.annotations).get(bundle.SHARE, current.share)
    rootfs = bundle.rootfs(found, current.root)
    about = share, variables, current.bundle, found.seccomp, found.guard_off
    target = HookTarget(rootfs, timeout, current.id, *about, name=found.name)
    uuids = [*own, *_gpus(config)]
    where = str(simulated), str(driver_root), str(rules)
    memory_limits.apply(target, state.require_pid(current), uuids, *where, log)


def _gpus(config: dict[str, Any]) -> list[str]:
    """The GPUs of every entry that names this hook, whatever program it starts. Raises UsageError."""
    stages = config.get("hooks")
    lists = [stage for stage in (stages.values() if isinstance(stages, dict) else ()) if isinstance(stage, list)]
    words = [entry.get("args") for stage in lists for entry in stage if isinstance(entry, dict)]
    after = [args[args.index(MEMORY) :] for args in words if isinstance(args, list) and MEMORY in args]
    return [uuid for args in after for uuid in read(args)[1].get("gpu-id", [])]


def _share_fields(given: _Config, final: tuple[str, ...]) -> tuple[tuple[Any, ...], str]:
    """What ``nvc.cdi.hooks.HookTarget`` has for a share, from its annotation on, and a share spec.

    final: the fixed settings of this start; those of the container's other hooks are added.
    The spec is of the hook that limits memory, where the container has that too: it came first, and what is decided
    now may only be tighter. Raises InputError. Where the bundle is not to be read (that of a rootless container may not
    be), the annotations of the state count.
    """
    current = given.state
    if current.share and not os.access(f"{current.bundle}/config.json", os.R_OK):
        return (current.share, {}, "", {}, False, {}, final), ""
    content, config = given.read()
    share, variables = dict(config.annotations).get(bundle.SHARE, current.share), environment.parse(config.env)
    final = tuple(dict.fromkeys((*final, *bundle.fixed(content, "", current.bundle))))
    fields = share, variables, current.bundle, config.seccomp, config.guard_off, content, final, config.name
    if final or not _gpus(content):
        return fields, ""
    from nvc.base.log import Log
    from nvc.cdi.memory_limits import limit

    most = limit(variables, Log.none())
    return fields, f"mem={most}Mi" if most else ""


def _rootfs(given: _Config) -> str:
    """The container's root. Raises InputError, ContainerError."""
    current = given.state
    if current.root.startswith("/"):
        # crun tells it; the bundle of a rootless container may be unreadable here.
        return bundle.rootfs(bundle.Bundle(current.bundle, env=(), root="", privileged=False), current.root)
    return bundle.rootfs(given.read()[1], current.root)


def _link_arguments(values: Values) -> tuple[object, ...]:
    links = []
    for word in values.get("link", []):
        parts = word.split("::")
        if len(parts) != 2 or not all(parts):
            raise UsageError(f"create-symlinks: --link {word!r} is not TEXT::PATH")
        links.append((parts[1], parts[0]))
    return (links,)


def _ldcache_arguments(values: Values) -> tuple[object, ...]:
    folders, ldconfig = values.get("folder", []), _last(values, "ldconfig-path")
    for path in (*folders, ldconfig.removeprefix("@")):
        if path and (not path.startswith("/") or not path.isprintable()):
            raise InputError(f"update-ldcache: {path!r} is not an absolute path")
    return folders, ldconfig


def _compat_arguments(values: Values) -> tuple[object, ...]:
    directory = _last(values, "cuda-compat-container-root") or COMPAT
    return _last(values, "host-driver-version"), _last(values, "host-cuda-version"), directory


def _memory_arguments(values: Values) -> tuple[object, ...]:
    spec, root = _last(values, "container-spec"), _last(values, "driver-root")
    if spec not in ("", "-"):
        raise UsageError(f"{MEMORY}: --container-spec {spec!r}: the state is read from standard input only")
    if root and not root.startswith("/"):
        raise InputError(f"{MEMORY}: --driver-root {root!r} is not an absolute path")
    if not all(values.get("gpu-id", [""])):
        raise UsageError(f"{MEMORY}: --gpu-id needs the UUID of a GPU")
    return values["gpu-id"], root, _last(values, "sim"), _config(values, MEMORY)


def _share_arguments(values: Values) -> tuple[object, ...]:
    if not all(values.get(bundle.FIXED, ["-"])):
        raise UsageError(f"share: --{bundle.FIXED} needs settings such as mem=10Gi")
    return _last(values, "share"), _config(values, "share"), _last(values, "sim"), _last(values, "root")


def _config(values: Values, name: str) -> str:
    path = _last(values, "config")
    if path and not path.startswith("/"):
        raise InputError(f"{name}: --config {path!r} is not an absolute path")
    return path


def _chmod_arguments(values: Values) -> tuple[object, ...]:
    text = _last(values, "mode")
    if not text or len(text) > 5 or not set(text) <= set("01234567") or int(text, 8) > 0o777:
        raise UsageError(f"chmod: --mode {text!r} is not octal permission bits such as 755")
    return int(text, 8), values.get("path", [])


#: Hook -> the arguments of the function of ``nvc.cdi.hooks`` with its name, between the target and the log.
_ARGUMENTS: dict[str, Callable[[Values], tuple[object, ...]]] = {
    "create-symlinks": _link_arguments,
    "update-ldcache": _ldcache_arguments,
    "enable-cuda-compat": _compat_arguments,
    "disable-device-node-modification": lambda values: (_last(values, "sim"),),
    "update-application-profile": lambda values: (),
    "share": _share_arguments,
    MEMORY: _memory_arguments,
    "chmod": _chmod_arguments,
}


def _last(values: Values, name: str) -> str:
    return values[name][-1] if name in values else ""


if __name__ == "__main__":
    run()
