"""The global options as values, and the context they open."""

from __future__ import annotations

import os

from nvc.base.budgets import TIMEOUT_S
from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.request.options import LibraryOptions, library_options
from nvc.request.userspec import parse_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from nvc.base.log import Log
    from nvc.cli.compat.getopt import Parsed
    from nvc.inject import api

    class Library(Protocol):
        """``nvc.inject.api``, or what a test puts in its place."""

        @property
        def Config(self) -> type[api.Config]: ...
        @property
        def ContainerConfig(self) -> type[api.ContainerConfig]: ...
        @property
        def Context(self) -> Callable[[api.Config, LibraryOptions, Log], api.Context]: ...
        @property
        def require_rights(self) -> Callable[[], None]: ...


#: Stands in for --sim.
SIMULATED = "NVC_SIM"
#: Longest --timeout, in seconds. Above it a limit has no effect in practice.
TIMEOUT_LIMIT = 24 * 3600.0


class Settings(Record):
    """The global options. Fields as in ``nvc.inject.api.Config``; library: of ``nvc_init``; json: print JSON."""

    debug: str = ""
    library: LibraryOptions = LibraryOptions()
    no_pivot: bool = False
    uid: int | None = None
    gid: int | None = None
    root: str = "/"
    ldcache: str = "/etc/ld.so.cache"
    sim: str = ""
    json: bool = False
    timeout: float = TIMEOUT_S
    cache: bool = True
    dev_root: str = ""
    libraries: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    ignored_links: tuple[str, ...] = ()
    wait: bool = True

    def with_machine(self, directory: str) -> Settings:
        """With a simulated machine. Raises InputError beside a driver root."""
        usual = Settings()
        for name in ("root", "ldcache"):
            if getattr(self, name) != getattr(usual, name):
                raise _exclude(name)
        return self.replace(sim=directory)

    def open(self, library: Library, log: Log, imex: tuple[int, ...] = ()) -> api.Context:
        """A context of the library."""
        from nvc.request.injection import mps_user

        config = library.Config(
            root=self.root,
            ldcache=self.ldcache,
            uid=self.uid,
            gid=self.gid,
            imex=imex,
            dev_root=self.dev_root,
            libraries=self.libraries,
            configs=self.configs,
            lists=self.lists,
            ignored_links=self.ignored_links,
            sim=self.sim,
            timeout=self.timeout,
            cache=self.cache,
            debug=self.debug,
            no_pivot=self.no_pivot,
            mps_user=mps_user(),
            wait=self.wait,
        )
        return library.Context(config, self.library, log)


def read(parsed: Parsed, environment: Mapping[str, str]) -> Settings:
    """environment: where NVC_SIM counts; --sim, --root and --ldcache go before it.

    Raises InputError for a value that cannot be read, InitializationError for options that are too long.
    """
    changes: dict[str, Any] = {}
    for name in ("debug", "root", "ldcache", "sim"):
        value = parsed.last(name)
        if value == "":
            raise InputError(f"invalid {name}: ''", hint=f"--{name} takes a path")
        if value is not None:
            changes[name] = value
    user = parsed.last("user")
    if user is not None:
        bare = parsed.is_bare("user")
        changes["uid"], changes["gid"] = (os.geteuid(), os.getegid()) if bare else parse_user(user)
    timeout = parsed.last("timeout")
    if timeout is not None:
        changes["timeout"] = _seconds(timeout)
    if not changes.keys() & {"sim", "root", "ldcache"} and environment.get(SIMULATED):
        changes["sim"] = environment[SIMULATED]
    for other in ("root", "ldcache"):
        if "sim" in changes and other in changes:
            raise _exclude(other)
    return Settings(
        library=library_options(parsed.names("library_options")),
        no_pivot=parsed.has("no_pivot"),
        cache=not parsed.has("no_cache"),
        json=parsed.has("json"),
        **changes,
    )


def _exclude(other: str) -> InputError:
    return InputError(f"--sim and --{other} exclude each other", hint="a simulated machine brings its own driver")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # Also false for "nan".
    if not 0 < seconds <= TIMEOUT_LIMIT:
        raise InputError(f"invalid timeout: {text}", hint=f"--timeout takes seconds, up to {TIMEOUT_LIMIT:.0f}")
    return seconds
