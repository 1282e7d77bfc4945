"""What the user wants of an engine, and what has to be done for it: plain values, passed between the modules here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nvc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How the programs are called; an entry that starts one of them is ours, whoever wrote it.
RUNTIME = "nvc-runtime"
HOOK = "nvc-hook"


class Wish(Record):
    """One call of ``runtime configure``.

    name, path: of the runtime. hook: path of the OCI hook. default: make it the engine's default runtime. cdi: switch
    the engine's own CDI support on. hooks: use the OCI hook in place of a runtime. config: the engine's main file.
    drop_in: the file beside it that takes the edits, "" for the main file. hooks_dir: where the hook's JSON goes.
    stage: OCI stage of the hook. remove: take out what was put in.
    """

    name: str = "nvidia"
    path: str = "/usr/bin/nvc-runtime"
    hook: str = "/usr/bin/nvc-hook"
    default: bool = False
    cdi: bool = False
    hooks: bool = False
    config: str = ""
    drop_in: str = ""
    hooks_dir: str = ""
    stage: str = "prestart"
    remove: bool = False


class FileEdit(Record):
    """One file to write. before, after: its text; None where there is no file. backup: "make" one of ``before``,
    "keep" the one there is (it shows the file without us), or "drop" it."""

    path: str
    before: str | None
    after: str | None
    backup: str = "keep"


class Plan(Record):
    """edits: the files that change, in the order of writing. looked_at: every file that could have changed. notes:
    sentences for the user. reload: the command that makes the engine read its files, "" if none is needed."""

    edits: tuple[FileEdit, ...]
    looked_at: tuple[str, ...]
    notes: tuple[str, ...] = ()
    reload: str = ""


class Sources(Protocol):
    """Where texts come from: ``files.Files``, or a dictionary in tests."""

    def read(self, path: str) -> str | None:
        """The text of a file, None if there is none."""

    def backup(self, path: str) -> str | None:
        """The text of the file before we changed it, None if it was not there."""

    def listing(self, pattern: str) -> Sequence[str]:
        """The paths that a shell pattern matches, sorted."""
