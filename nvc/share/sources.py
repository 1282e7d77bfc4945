"""The sources of a share and their order, in one table for hook, runtime, CDI hook, ``configure`` and ``check``. Pure.

Root sets the first two, on a command line, in a hook's entry or in a CDI specification: the first of them that says
something is taken as a whole. Users that start containers set the others, and images do: of these the tightest counts
(``nvc.share.tightest``). The node's rules (``nvc.share.policy``) hold for all.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.share import dialects
from nvc.share.dialects import RequestedShare
from nvc.share.spec import REQUIRE, merge, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.request.injection import ShareRequest
    from nvc.share.model import Share
    from nvc.share.policy import Policy

#: Names of sources; DEFAULT stands for the node's rules where no source says anything.
FIXED, OPTION, ANNOTATION, VARIABLES, DEFAULT = "--share-fixed", "--share", "nvc.share", "variables", "default"


def requested(policy: Policy, request: ShareRequest) -> RequestedShare | None:
    """What root's first source says that says something, else what the users' say together; None without one.

    Raises InputError that names the source.
    """
    users: list[RequestedShare] = []
    for name, read in ORDER:
        found = read(policy, request)
        if found is None:
            continue
        for one in (found, *found.also):
            _check(one, fixed=name == FIXED)
        if name in ROOTS:
            return found
        users.append(found)
    return dialects.combined(users)


def _check(found: RequestedShare, *, fixed: bool) -> None:
    if found.share.group and not fixed:
        raise InputError(
            f"{found.source}: group={found.share.group} is not accepted: it would join another tenant",
            hint=f"groups come from {FIXED} of a hook or of nvc-py configure, which root sets",
        )
    if found.share.requires_guard and not fixed:
        raise InputError(
            f"{found.source}: guard={REQUIRE} is not accepted: it is a setting of the node",
            hint=f"it comes from {FIXED} of a hook or of nvc-py configure, or from [share] guard of config.toml",
        )


def leaves_guard(policy: Policy, request: ShareRequest) -> bool:
    """Whether the annotation nvc.guard=off takes the container out of the guard: not where its settings are fixed."""
    return request.guard_off and policy.allow_guard_off and not request.fixed


def _read(text: str, name: str, parser: Callable[[str], Share]) -> RequestedShare | None:
    if not text:
        return None
    return RequestedShare(_named(name, lambda: parser(text)), name)


def _variables(policy: Policy, request: ShareRequest) -> RequestedShare | None:
    return dialects.read(request.environment, alone=not request.annotation) if policy.variables else None


def _fixed(request: ShareRequest) -> RequestedShare | None:
    if not request.fixed:
        return None
    return RequestedShare(_named(FIXED, lambda: merge(request.fixed)), FIXED)


def _named(name: str, parser: Callable[[], Share]) -> Share:
    try:
        return parser()
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None


#: (name, what reads it), root's first.
ORDER: tuple[tuple[str, Callable[[Policy, ShareRequest], RequestedShare | None]], ...] = (
    (FIXED, lambda policy, request: _fixed(request)),
    (OPTION, lambda policy, request: _read(request.option, OPTION, parse)),
    (ANNOTATION, lambda policy, request: _read(request.annotation, ANNOTATION, parse)),
    (VARIABLES, lambda policy, request: _variables(policy, request)),
)
ROOTS = (FIXED, OPTION)
