"""``nvc-hook STAGE``: the only place of the hook that prints, and that turns an error into an exit code.

A container that asks for no GPU is most containers, so what is imported here is paid for all of them; everything
else is imported after ``_look`` said yes. tests/hook/test_startup.py holds the list.
"""

from __future__ import annotations

import os
import sys

from hook import bundle, environment, process, state, swarm
from hook.arguments import ALIASES, Arguments, parse, usage
from nvc.base.errors import InputError, NvcError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from hook.target import Target

    Inject = Callable[[Target], None]

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def main(argv: Sequence[str], program: str = "nvc-hook") -> int:
    """Run the hook on this process's stdin; 0: done or nothing to do, 1: failed, 2: wrong usage, 130: interrupted."""
    # Before anything is read: in createContainer the environment and the working directory can be the container's.
    directory = process.sanitise(trusted=not any(word in state.INSIDE for word in argv))
    return serve(argv, program, directory)


def serve(
    argv: Sequence[str], program: str, directory: str, *, inject: Inject | None = None, stdin: int = _STDIN
) -> int:
    """``main`` in a clean process. directory: what relative paths on the command line mean; "" refuses them."""
    try:
        arguments = parse(argv, program)
    except UsageError as error:
        process.fail(program, error, "")
        process.say(_STDERR, usage(program))
        return 2
    if arguments.help:
        process.say(_STDOUT, usage(program))
        return 0
    if arguments.version:
        from nvc import __version__

        process.say(_STDOUT, f"{program} (nvc-py) version {__version__}\n")
        return 0
    debug = arguments.debug or os.environ.get("NVC_DEBUG_FILE", "")
    try:
        debug = _named(debug, directory, "--debug")
        target = _look(arguments, directory, debug, stdin, program)
        if target is None:
            return 0
        debug = ""  # from here on the log is open, and gets the error there
        (inject or _give)(target)
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
    name = os.path.basename(sys.argv[0])
    return main(sys.argv[1:], name if name in ALIASES else "nvc-hook")


def run() -> NoReturn:
    """Entry point of the command: ends without tearing the interpreter down, which would cost a tenth of the run."""
    os._exit(outcome())


def _look(arguments: Arguments, directory: str, debug: str, stdin: int, program: str) -> Target | None:
    """Read what the runtime says about the container; None when there is nothing to do for it."""
    if arguments.stage in state.IDLE:
        return None
    current = state.decode(state.read(stdin, arguments.timeout), directory)
    content = bundle.parse(bundle.read(current.bundle), current.bundle)
    config = bundle.look(content, current.bundle)
    env = environment.parse(config.env)
    settings = _named(arguments.config, directory, "--config")
    if not swarm.asked(env, config.device_mounts, settings, os.environ):
        return None
    from hook.target import Target

    inside = arguments.stage in state.INSIDE
    if inside:
        hint = "the hook's entry has another stage than its args: write prestart or createRuntime there"
        state.require_inside(current, hint)
    return Target(
        None if inside else state.require_pid(current),
        bundle.rootfs(config, current.root),
        env,
        config.privileged,
        settings,
        debug,
        _named(arguments.sim or os.environ.get("NVC_SIM", ""), directory, "--sim"),
        arguments.timeout,
        program,
        config.device_mounts,
        current.id,
        dict(config.annotations).get(bundle.SHARE, current.share),
        current.bundle,
        config.seccomp,
        config.guard_off,
        bundle.fixed(content, arguments.share_fixed, current.bundle),
        config.name,
    )


def _give(target: Target) -> None:
    from hook.inject import give

    give(target)


def _named(path: str, directory: str, option: str) -> str:
    """A path of the command line, made absolute: the working directory is "/" by now."""
    whole = process.absolute(path, directory)
    if path and not whole:
        raise InputError(f"{option} {path!r} is not an absolute path")
    return whole


if __name__ == "__main__":
    run()
