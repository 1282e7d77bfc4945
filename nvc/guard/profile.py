"""A grammar for what a container's filter is made from, which every runtime reads in one way. Pure.

The guard reads config.json, and a runtime makes the filter: what the two read differently is a way round the guard. Go
and crun hand a name to libseccomp as a C string, which ends at a NUL; encoding/json takes keys in any case of letters
and the last of two; crun takes an architecture in small letters (libcrun seccomp.c). So what is not known here is
refused; ``hook.runtime.annotated`` has the annotations from which crun takes a whole filter.
"""

from __future__ import annotations

from nvc.base.errors import InputError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ALLOW, LOG, NOTIFY = "SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY"
PERMITS = (ALLOW, LOG)
#: After these the call is not made. SCMP_ACT_TRACE is none of them: a tracer in the container can let it pass.
REFUSES = ("SCMP_ACT_ERRNO", "SCMP_ACT_TRAP", "SCMP_ACT_KILL", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_KILL_PROCESS")
HINT = "let the engine use its default profile, or one without rules of its own for ioctl and mmap"
_ACTIONS = (*PERMITS, *REFUSES, NOTIFY, "SCMP_ACT_TRACE")
#: OCI runtime-spec, config-linux.md, "Seccomp"; and what the profiles of Docker and of containers/common have besides.
_PROFILE = (
    "defaultAction",
    "defaultErrnoRet",
    "architectures",
    "flags",
    "listenerPath",
    "listenerMetadata",
    "syscalls",
)
_ENGINES = ("defaultErrno", "archMap", "comment")
_RULE = ("names", "action", "errnoRet", "args", "comment", "errno", "includes", "excludes", "name")
_ARGUMENT = ("index", "value", "valueTwo", "op")
#: How a word begins, of what characters the rest is, and what it should be.
_CALL = "", frozenset("abcdefghijklmnopqrstuvwxyz0123456789_"), "the name of a system call"
_ARCHITECTURE = "SCMP_ARCH_", frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"), "SCMP_ARCH_..."
_FLAG = "SECCOMP_FILTER_FLAG_", frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), "SECCOMP_FILTER_FLAG_..."


def rules(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rules of ``profile``, all of which is in the grammar. Raises InputError that names what is not."""
    _known(profile, (*_PROFILE, *_ENGINES), "")
    for key in ("defaultAction", "listenerPath", "listenerMetadata"):
        text = profile.get(key) or ""
        if not isinstance(text, str) or not text.isprintable():
            raise _error(f"{key} is no plain text")
    _words(profile.get("architectures") or [], _ARCHITECTURE, "architectures")
    _words(profile.get("flags") or [], _FLAG, "flags")
    entries = profile.get("archMap") or []
    for entry in entries if isinstance(entries, list) else [None]:
        found = entry if isinstance(entry, dict) else {}
        _words([found.get("architecture")], _ARCHITECTURE, "archMap.architecture")
        _words(found.get("subArchitectures") or [], _ARCHITECTURE, "archMap.subArchitectures")
    listed = profile.get("syscalls")
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise _error("syscalls is not a list")
    for number, rule in enumerate(listed):
        _check_rule(rule, f"syscalls[{number}]")
    return listed


def _check_rule(rule: object, place: str) -> None:
    names = rule.get("names") if isinstance(rule, dict) else None
    if names is None and isinstance(rule, dict) and isinstance(rule.get("name"), str):
        raise _error(f"{place} has 'name', which no runtime reads")
    if not isinstance(rule, dict) or not isinstance(names, list):
        raise _error(f"{place} has no list of names")
    _known(rule, _RULE, f"{place}.")
    _words(names, _CALL, f"{place}.names")
    if rule.get("action") not in _ACTIONS:
        raise _error(f"{place}: action {shown(str(rule.get('action')))} cannot be guarded")
    arguments = rule.get("args") or []
    if not isinstance(arguments, list):
        raise _error(f"{place}.args is not a list")
    for one in arguments:
        if not isinstance(one, dict):
            raise _error(f"{place}.args has what is no object")
        _known(one, _ARGUMENT, f"{place}.args.")


def _known(found: Mapping[str, Any], keys: tuple[str, ...], place: str) -> None:
    for key in found:
        if key not in keys:
            raise _error(f"unknown key {place}{shown(key)}")


def _words(found: object, form: tuple[str, frozenset[str], str], place: str) -> None:
    begin, characters, wanted = form
    for word in found if isinstance(found, list) else [None]:
        rest = word.removeprefix(begin) if isinstance(word, str) else ""
        if not isinstance(word, str) or not word.startswith(begin) or not rest or not characters.issuperset(rest):
            raise _error(f"{place}: {shown(str(word))} is not {wanted}")


def _error(what: str) -> InputError:
    return InputError(f"seccomp profile: {what}", hint=HINT)
