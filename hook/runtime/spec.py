"""config.json of a bundle: edited in memory with everything kept that is not understood, replaced in one step."""

from __future__ import annotations

import os
import stat
import time

from hook import bundle, files
from nvc.base.errors import InputError, reason, shown
from rpc.codec import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME, _TEMPORARY = "config.json", ".config.json.nvc-runtime"
_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
#: Keys that say what a container reaches, by the object that they are in; of a list, of each object in it.
_KEYS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((), ("annotations", "hooks", "linux", "mounts", "process", "root")),
    (("root",), ("path",)),
    (("process",), ("capabilities", "env", "user")),
    (("process", "capabilities"), ("ambient", "bounding", "effective", "inheritable", "permitted")),
    (("mounts",), ("destination", "options", "source", "type")),
    (("hooks",), _STAGES),
    *((("hooks", stage), ("args", "env", "path")) for stage in _STAGES),
    (("linux",), ("cgroupsPath", "devices", "namespaces", "resources", "seccomp")),
    (("linux", "devices"), ("major", "minor", "path", "type")),
    (("linux", "namespaces"), ("path", "type")),
    (("linux", "resources"), ("devices",)),
    (("linux", "resources", "devices"), ("access", "allow", "major", "minor", "type")),
)


def read(directory: str) -> dict[str, Any]:
    """config.json as it is. Raises InputError."""
    return bundle.parse(files.read(f"{directory}/{_NAME}", bundle.CONFIG_LIMIT), directory)


def write(directory: str, config: dict[str, Any]) -> None:
    """Put ``config`` in the place of the bundle's config.json: the old file or the new one is there, never half of one.

    Mode and owner stay. A link is replaced, not followed: nothing outside of the bundle is written. Raises InputError;
    the old file is then as it was.
    """
    # The time too: a process with this number may have been killed here before.
    temporary = f"{_TEMPORARY}-{os.getpid()}-{time.time_ns()}"
    named = False
    try:
        place = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{directory}: {reason(error)}") from error
    try:
        old = os.stat(_NAME, dir_fd=place)
        number, named = _new(place, temporary)
        with open(number, "wb") as file:
            file.write(dumps(config))
            file.flush()
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(number, old.st_uid, old.st_gid)
            os.fchmod(number, stat.S_IMODE(old.st_mode))
            if not named:
                os.link(f"/proc/self/fd/{number}", temporary, dst_dir_fd=place, follow_symlinks=True)
                named = True
        os.replace(temporary, _NAME, src_dir_fd=place, dst_dir_fd=place)
        named = False
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{directory}/{_NAME} cannot be written: {why}", hint="it is as it was") from error
    finally:
        if named:
            os.unlink(temporary, dir_fd=place)
        os.close(place)


def _new(place: int, name: str) -> tuple[int, bool]:
    """A file for what is written, and whether it has the name already.

    It has one only when it is whole, where the file system can do that: a process that is killed leaves nothing.
    """
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=place), False
    except OSError:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=place), True


def section(config: dict[str, Any], key: str, directory: str) -> dict[str, Any]:
    """The object ``key`` of ``config``, made when it is missing or null. Raises InputError for anything else."""
    value = config.get(key)
    if value is None:
        value = config[key] = {}
    if not isinstance(value, dict):
        raise InputError(f"{directory}/{_NAME}: {key} is not an object")
    return value


def entries(parent: dict[str, Any], key: str, directory: str) -> list[Any]:
    """The list ``key`` of an object in it, made when it is missing or null. Raises InputError for anything else."""
    value = parent.get(key)
    if value is None:
        value = parent[key] = []
    if not isinstance(value, list):
        raise InputError(f"{directory}/{_NAME}: {key} is not a list")
    return value


def check_keys(config: dict[str, Any], directory: str) -> None:
    """Raises InputError for a key of _KEYS in another spelling.

    encoding/json takes a key in any case of letters, and the last of two: a runtime in Go would read what is not read
    here. It folds as Unicode does, so U+017F is an s.
    """
    for place, keys in _KEYS:
        found: Any = config
        for step in place:
            found = found.get(step) if isinstance(found, dict) else None
        folded = {key.casefold(): key for key in keys}
        for one in found if isinstance(found, list) else [found]:
            for name in one if isinstance(one, dict) else ():
                key = folded.get(name.casefold())
                if key is not None and key != name:
                    raise InputError(
                        f"{directory}/{_NAME}: {'.'.join((*place, key))} is there in another spelling, {shown(name)}",
                        hint=f"write it {key!r}, and once: runtimes read other spellings in different ways",
                    )
