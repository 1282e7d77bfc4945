"""Values that the modules here pass to each other: the configuration that is wanted, and the edits that make it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nvc.base.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Base names of the programs: an entry that starts one of them is ours, whether written by nvc-py or by hand.
RUNTIME = "nvc-runtime"
HOOK = "nvc-hook"
#: NVIDIA's names of the same programs, which are installed too. In another directory they are another's.
RUNTIME_NAMES = ("nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy")
HOOK_NAMES = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")


def as_written(program: str) -> str:
    """The file that an engine starts, as far as its name says it; without a directory: where packages put programs."""
    return program if "/" in program else f"/usr/bin/{program}"


class EngineConfig(Record):
    """What an engine's files are to contain after ``runtime configure``.

    name, path: of the runtime. hook: path of the OCI hook. default: make it the engine's default runtime. cdi: switch
    the engine's own CDI support on. hooks: use the OCI hook in place of a runtime. main_file: the engine's main file.
    drop_in: the file beside it that takes the edits, "" for the main file. hooks_dir: where the hook's JSON goes.
    stage: OCI stage of the hook. remove: take the entries out. every: the programs beside path and hook go, so entries
    that start one of them, by whatever name, are ours, and no other. resolve: the file that an engine starts for a
    program's name. effective: the settings as the engine itself prints them, "" to go by its files.
    """

    name: str = "nvidia"
    path: str = "/usr/bin/nvc-runtime"
    hook: str = "/usr/bin/nvc-hook"
    default: bool = False
    cdi: bool = False
    hooks: bool = False
    main_file: str = ""
    drop_in: str = ""
    hooks_dir: str = ""
    stage: str = "prestart"
    remove: bool = False
    every: bool = False
    resolve: Callable[[str], str] = as_written
    effective: str = ""


class FileEdit(Record):
    """One file to write. before, after: its text; None where there is no file. backup: "make" one of ``before``,
    "keep" the existing one (the file without our entries), or "drop" it."""

    path: str
    before: str | None
    after: str | None
    backup: str = "keep"


class Plan(Record):
    """edits: the files that change, in the order of writing. looked_at: every file that was considered. notes:
    sentences for the user. reload: the command that makes the engine read its files, "" if none is needed."""

    edits: tuple[FileEdit, ...]
    looked_at: tuple[str, ...]
    notes: tuple[str, ...] = ()
    reload: str = ""


class Sources(Protocol):
    """Reads files: ``files.Files``, or a dictionary in tests."""

    def read(self, path: str) -> str | None:
        """The text of a file, None if there is none."""

    def backup(self, path: str) -> str | None:
        """The text of the file before our first edit, None if there is no backup."""

    def listing(self, pattern: str) -> Sequence[str]:
        """The paths that a shell pattern matches, sorted."""
