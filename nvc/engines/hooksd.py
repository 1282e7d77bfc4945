"""An OCI hook's file for hooks.d, which Podman and CRI-O read (oci-hooks(5), schema 1.0.0). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.engines import edit, steps
from nvc.engines.changes import Change, Tree, get
from nvc.engines.wish import HOOK, FileEdit, Sources, Wish
from nvc.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = "nvc.json"
#: The directory that both engines read if they are told nothing (containers/common pkg/config: DefaultHooksDirs).
BUILT_IN = "/usr/share/containers/oci/hooks.d"
#: The toolkit's hook, under its file's names; it would serve the same containers a second time.
TOOLKIT_FILE = "oci-nvidia-hook.json"
#: Without ``env`` runc starts a createContainer hook with the container's environment, LD_PRELOAD included
#: (CVE-2025-23266); so it is always there, and never empty.
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
#: Seconds. An engine without a limit waits for ever.
TIMEOUT = 60


def path(wish: Wish) -> str:
    return f"{wish.hooks_dir}/{FILE}"


def changes(tree: Tree, wish: Wish) -> list[Change]:
    """What makes the file start our hook. Settings that stand there and are safe stay."""
    name = wish.hook.rpartition("/")[2]
    wanted: list[tuple[tuple[str, ...], object]] = [
        (("version",), "1.0.0"),
        (("hook", "path"), wish.hook),
        (("hook", "args"), [name, wish.stage]),
        (("hook", "env"), ENVIRONMENT),
        (("hook", "timeout"), TIMEOUT),
        (("when", "always"), True),
        (("stages",), [wish.stage]),
    ]
    kept = {("hook", "env"), ("hook", "args"), ("hook", "timeout"), ("stages",)}
    result = [Change(place, value) for place, value in wanted if place not in kept or not get(tree, place)]
    return [change for change in result if change.path != ("when", "always") or not get(tree, ("when",))]


def put(wish: Wish, sources: Sources) -> Iterator[FileEdit]:
    """Write the hook's file. Raises InputError if the file is another program's."""
    tree = _read(wish, sources)
    if tree and not _ours(tree, wish):
        raise InputError(
            f"{path(wish)} starts {get(tree, ('hook', 'path'))}, which is not ours",
            hint="move the file away, or choose another directory with --hooks-dir",
        )
    yield from steps.put(sources, steps.JSON, path(wish), changes(tree, wish), ours=bool(tree))


def take(wish: Wish, sources: Sources) -> Iterator[FileEdit]:
    """Take the hook's file away, if it is ours."""
    text = sources.read(path(wish))
    if text is not None and _ours(_read(wish, sources), wish):
        yield FileEdit(path(wish), text, None, "drop")


def twice(wish: Wish, sources: Sources, directories: list[str]) -> tuple[str, ...]:
    """A note about each file that starts the toolkit's hook as well."""
    found = [name for name in (f"{directory}/{TOOLKIT_FILE}" for directory in directories) if sources.listing(name)]
    return tuple(f"{name} starts another NVIDIA hook for the same containers: remove it" for name in found)


def others(wish: Wish, sources: Sources) -> bool:
    """Whether the directory has hooks that are not ours."""
    return any(name != path(wish) for name in sources.listing(f"{wish.hooks_dir}/*.json"))


def _read(wish: Wish, sources: Sources) -> Tree:
    return edit.read(steps.JSON, sources.read(path(wish)), path(wish))


def _ours(tree: Tree, wish: Wish) -> bool:
    program = get(tree, ("hook", "path"))
    return isinstance(program, str) and (program == wish.hook or program.rpartition("/")[2] == HOOK)
