"""The ``UID[:GID]`` of ``--user``: numbers or names (libnvidia-container.md 1.2)."""

from __future__ import annotations

import errno
import os

from nvc.base.errors import InputError

# (uid_t) -1 means "leave it as it is" to the kernel, so it is not an id.
_ID_LIMIT = 2**32 - 1


def parse_user(text: str) -> tuple[int, int]:
    """The uid and gid that ``text`` names.

    A user alone brings the group of their passwd entry. Raises InputError with the reference's words.
    """
    if not text:
        raise _failed(errno.ENOENT, text)
    user, _, group = text.partition(":")
    if ":" in group:
        raise _failed(errno.EINVAL, text)
    uid = _number(user, text)
    if uid is not None and group:
        return uid, _group_id(group, text)
    import pwd  # only here: a number with a group needs no look-up

    try:
        entry = pwd.getpwnam(user) if uid is None else pwd.getpwuid(uid)
    except (KeyError, OSError, ValueError) as error:
        raise _failed(errno.ENOENT, text) from error
    return entry.pw_uid, _group_id(group, text) if group else entry.pw_gid


def user_id(text: str, label: str) -> int:
    """The uid that ``text`` names, by number or by name. label: what says so, for the message. Raises InputError."""
    try:
        uid = _number(text, text)
        return parse_user(text)[0] if uid is None else uid
    except InputError as error:
        raise InputError(f"{label} = {text!r}: {error.message}", hint="write a uid, or a name from passwd") from error


def _number(text: str, whole: str) -> int | None:
    """``text`` as an id, None if it is a name. Names do not begin with a digit or a sign."""
    if text and text[0] not in "0123456789+-":
        return None
    if not text or not frozenset("0123456789").issuperset(text):
        raise _failed(errno.EINVAL, whole)
    digits = text.lstrip("0") or "0"
    if len(digits) > 10 or int(digits) >= _ID_LIMIT:
        raise _failed(errno.ERANGE, whole)
    return int(digits)


def _group_id(text: str, whole: str) -> int:
    gid = _number(text, whole)
    if gid is not None:
        return gid
    import grp

    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, OSError, ValueError) as error:
        raise _failed(errno.ENOENT, whole) from error


def _failed(number: int, text: str) -> InputError:
    hint = f"--user={text}: write UID, UID:GID, or names from passwd and group; --user alone is the caller"
    return InputError(f"parse user/group failed: {os.strerror(number).lower()}", hint=hint)
