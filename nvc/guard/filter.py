"""The seccomp filter that lets a container's calls of the GPU driver be watched: merged into the one it has. Pure.

Two kinds of call are announced to a listener (SCMP_ACT_NOTIFY) instead of going to the kernel:

- ``ioctl`` with a request of NVIDIA's drivers that requests.py does not let pass: of the resource manager by its low
  byte and the size of its struct (the driver looks at nothing else: nvidia/nv.c, nvidia_ioctl; a filter that compared
  the type byte would be got round with another one), of UVM by all 32 bits. Other drivers' requests of the
  same low byte, a terminal's TCGETS2 (0x802C542A) or FIONBIO, are not announced.
- ``mmap`` of a file that is shared, at an offset that is not 0: managed memory is a shared mapping of /dev/nvidia-uvm
  and no ioctl at all, and that driver takes it only where the offset is the address (uvm_mmap). The other nodes of the
  driver take no offset but 0 (nvidia_mmap_helper), so a program's hundreds of those are not announced. A mapping at
  the address 0, which some may make, is announced as well.

libseccomp keeps no conditional rule beside an unconditional one for the same system call. Where a profile allows such a
call as a whole, the permission is written as its complement: masks that together match every other number.
Facts: gpu-sharing-kernel.md 5.1, 5.3, 5.6; OCI runtime-spec, config-linux.md, "Seccomp".
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.guard.profile import ALLOW, HINT, NOTIFY, PERMITS, REFUSES
from nvc.guard.profile import rules as checked
from nvc.guard.requests import announced_escapes, announced_uvm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    #: Name of a call; the conditions under which it is as before; those under which it is answered otherwise.
    Call = tuple[str, list[list[dict[str, Any]]], list[list[dict[str, Any]]]]

#: Bits of a request (asm-generic/ioctl.h), in the order in which the cover of what passes looks at them: the size, then
#: what is 0 in UVM's requests. In another order the same cover takes three to ten times as many rules.
_SIZE_SHIFT, _SIZE_MASK, _LOW_MASK = 16, 0x3FFF, 0xFF
#: What the resource manager looks at of a request.
REQUEST_MASK = _SIZE_MASK << _SIZE_SHIFT | _LOW_MASK
_BITS = (*range(29, 15, -1), 31, 30, *range(15, -1, -1))
_MASKED, _EQUAL, _OTHER = "SCMP_CMP_MASKED_EQ", "SCMP_CMP_EQ", "SCMP_CMP_NE"
_SHARED, _ANONYMOUS = 0x01, 0x20  # mman.h: MAP_SHARED, which is also a bit of MAP_SHARED_VALIDATE; MAP_ANONYMOUS
_FIXED, _NOREPLACE = 0x10, 0x100000  # MAP_FIXED, MAP_FIXED_NOREPLACE: the address is not a hint
_ADDRESS, _FLAGS, _OFFSET = 0, 3, 5
_X32 = "SCMP_ARCH_X32"
#: The other system calls of a machine that reach the same drivers; a listener refuses their announcements.
_SECOND = {"SCMP_ARCH_X86_64": ("SCMP_ARCH_X86",), "SCMP_ARCH_AARCH64": ("SCMP_ARCH_ARM",)}


def merge(
    profile: Mapping[str, Any] | None, listener: str, metadata: str, native: str, *, second: bool = True
) -> dict[str, Any]:
    """``profile`` (linux.seccomp of a config.json, or an engine's profile; None: unconfined) with the calls announced.

    listener: absolute path of the unix socket that gets the filter's descriptor. metadata: text that goes with it.
    native: the machine's own "SCMP_ARCH_...". Nothing that the profile refuses becomes possible, and nothing that it
    permits becomes impossible, except for the x32 system calls, which are refused, and, without ``second``, those of
    the 32-bit entry: its first mmap has its arguments in memory, where no rule can look (docs/internals/guard.md).
    Raises InputError for a profile that has a listener already, or whose own conditions cannot be kept beside ours.
    """
    refused = (_X32,) if second else (_X32, *_SECOND.get(native, ()))
    profile = whole(profile, native)
    if profile.get("listenerPath") or any(rule.get("action") == NOTIFY for rule in checked(profile)):
        raise InputError(
            "seccomp profile: it announces calls to a listener already, and the kernel has one listener a container",
            hint="start the container without the other listener, or without a guarded share",
        )
    merged = divide(profile, _calls(), {"action": NOTIFY}, refused)
    return {**merged, "listenerPath": listener, "listenerMetadata": metadata}


def whole(profile: Mapping[str, Any] | None, native: str) -> Mapping[str, Any]:
    """``profile``, or one that permits everything. Raises InputError for what is no object."""
    if profile is None:
        return {"defaultAction": ALLOW, "architectures": [native, *_SECOND.get(native, ())]}
    if not isinstance(profile, dict):
        raise InputError("seccomp profile: not an object", hint=HINT)
    return profile


def divide(
    profile: Mapping[str, Any], calls: Sequence[Call], answer: Mapping[str, Any], refused: Sequence[str] = (_X32,)
) -> dict[str, Any]:
    """``profile`` in which a part of each call has ``answer`` (a rule's action), where the profile permits the call.

    refused: architectures with every call refused. Raises InputError as ``merge``.
    """
    rules = checked(profile)
    default = profile.get("defaultAction")
    if not isinstance(default, str):
        raise InputError("seccomp profile: defaultAction is missing", hint=HINT)
    _check_action(default, "every other call")
    kept, added = list(rules), []
    for name, covers, answered in calls:
        if name == "mmap2" and not any(name in rule["names"] for rule in rules) and default in REFUSES:
            continue
        kept, permitting = _take(kept, name, default)
        if permitting is None:
            continue
        if permitting != default:
            added += [_rule(name, {"action": permitting}, arguments) for arguments in covers]
        added += [_rule(name, answer, arguments) for arguments in answered]
    merged = {**profile, "syscalls": [*kept, *added]}
    if isinstance(merged.get("architectures"), list):
        merged["architectures"] = [word for word in merged["architectures"] if word not in refused]
    if isinstance(merged.get("archMap"), list):
        merged["archMap"] = [_without(entry, refused) for entry in merged["archMap"]]
    return merged


def fault(profile: Mapping[str, Any], listener: str) -> str:
    """What keeps ``profile`` from announcing to ``listener`` all that ``merge`` has announced; "" for nothing.

    profile: linux.seccomp of a config.json. A rule that is not one of ours may decide before ours do, so for these
    calls there must be our rules, each once, and no other.
    """
    if profile.get("listenerPath") != listener:
        return f"its listener is {str(profile.get('listenerPath'))[:200]!r} and not the agent's, {listener}"
    try:
        rules = checked(profile)
    except InputError as error:
        return error.message
    default = profile.get("defaultAction")
    if default not in (*PERMITS, *REFUSES):
        return f"its defaultAction is {str(default)[:40]}"
    if _X32 in str(profile.get("architectures")):
        return "it permits the x32 system calls"
    calls = _calls()
    if any(rule.get("action") == NOTIFY and rule["names"] not in [[name] for name, _, _ in calls] for rule in rules):
        return "it announces other calls as well"
    for name, covers, announced in calls:
        concerned = [rule for rule in rules if name in rule["names"]]
        if not _is_announced(concerned, name, default, _compared(covers), _compared(announced)):
            return f"its rules for {name} are not the guard's"
    return ""


def masked_escapes(*without: int) -> list[int]:
    """The resource manager's announced requests under REQUEST_MASK, without those of some numbers."""
    return [size << _SIZE_SHIFT | low for low, size in announced_escapes() if low not in without]


def announced() -> list[tuple[int, int]]:
    """(mask, value) pairs of 32 bits: a request is announced when one of them matches. No request matches two."""
    return requests(masked_escapes(), announced_uvm())


def requests(masked: Sequence[int], uvm: Sequence[int]) -> list[tuple[int, int]]:
    """The same for these of the resource manager's under REQUEST_MASK, and of UVM's, ascending."""
    found, left = [(REQUEST_MASK, value) for value in masked], list(uvm)
    while left:
        # the longest aligned run that begins here
        length = 1
        while left[0] % (2 * length) == 0 and left[: 2 * length] == list(range(left[0], left[0] + 2 * length)):
            length *= 2
        found.append((0xFFFFFFFF & ~(length - 1), left[0]))
        left = left[length:]
    return found


def cover(pairs: Sequence[tuple[int, int]], bits: Sequence[int] = _BITS) -> list[tuple[int, int]]:
    """(mask, value) pairs that together match every number of ``bits`` that none of ``pairs`` does, each exactly once.

    bits: their places, in the order in which numbers are told apart.
    """
    found: list[tuple[int, int]] = []

    def walk(depth: int, mask: int, value: int, left: list[tuple[int, int]]) -> None:
        if not left:
            found.append((mask, value))
            return
        if any(not one & ~mask for one, _ in left):
            return  # all of these are among the pairs
        while not any(one >> bits[depth] & 1 for one, _ in left):
            depth += 1
        bit = 1 << bits[depth]
        for set_to in (0, bit):
            rest = [pair for pair in left if not pair[0] & bit or pair[1] & bit == set_to]
            walk(depth + 1, mask | bit, value | set_to, rest)

    walk(0, 0, 0, list(pairs))
    return found


def _take(rules: list[dict[str, Any]], name: str, default: str) -> tuple[list[dict[str, Any]], str | None]:
    """The rules without those for ``name``, and the action that permits it; None when the profile refuses it.

    A call that is refused as a whole stays in the rules: there is nothing to watch.
    """
    concerned = [rule for rule in rules if name in rule["names"]]
    if not concerned:
        _check_action(default, name)
        return rules, default if default in PERMITS else None
    actions = {rule.get("action") for rule in concerned}
    if any(rule.get("args") or rule.get("includes") or rule.get("excludes") for rule in concerned):
        raise InputError(f"seccomp profile: it has conditions of its own for {name}", hint=HINT)
    if len(actions) != 1:
        raise InputError(f"seccomp profile: it has several actions for {name}", hint=HINT)
    action = concerned[0].get("action")
    _check_action(action, name)
    if action not in PERMITS:
        return rules, None
    kept = []
    for rule in rules:
        names = [other for other in rule["names"] if other != name]
        if names:
            kept.append(rule if len(names) == len(rule["names"]) else {**rule, "names": names})
    return kept, action


def _check_action(action: object, name: str) -> None:
    """Raises InputError for an action that leaves open whether the call is made."""
    if action not in (*PERMITS, *REFUSES):
        raise InputError(f"seccomp profile: action {str(action)[:40]} for {name} cannot be guarded", hint=HINT)


def _is_announced(
    concerned: Sequence[Mapping[str, Any]],
    name: str,
    default: object,
    covers: list[list[tuple[object, ...]]],
    announced: list[list[tuple[object, ...]]],
) -> bool:
    """Whether the rules ``concerned`` refuse the call as a whole, or are what ``merge`` makes of a permission."""
    if not concerned:
        return default in REFUSES
    actions = {rule.get("action") for rule in concerned if rule.get("action") != NOTIFY}
    notify = [rule.get("args") for rule in concerned if rule.get("action") == NOTIFY]
    others = [rule.get("args") for rule in concerned if rule.get("action") != NOTIFY]
    if not notify and not any(others):
        return len(actions) == 1 and actions.issubset(REFUSES)
    if any(rule["names"] != [name] for rule in concerned) or _compared(notify) != announced:
        return False
    if not others:
        return default in PERMITS
    return len(actions) == 1 and actions.issubset(PERMITS) and _compared(others) == covers


def _compared(rules: Sequence[object]) -> list[list[tuple[object, ...]]]:
    """Conditions of several rules in an order of their own; engines leave a valueTwo of 0 out."""
    return sorted(
        sorted(
            (str(one.get("index")), str(one.get("op")), str(one.get("value", 0)), str(one.get("valueTwo") or 0))
            for one in (arguments if isinstance(arguments, list) else ())
            if isinstance(one, dict)
        )
        for arguments in rules
    )


def ioctl(pairs: Sequence[tuple[int, int]]) -> Call:
    """The call ioctl, divided into the requests that (mask, value) ``pairs`` match and all others."""
    others = [[_masked(1, mask, value)] for mask, value in cover(pairs)]
    return "ioctl", others, [[_masked(1, mask, value)] for mask, value in pairs]


#: Made once: what is in it is not changed.
_known: list[tuple[Call, ...]] = []


def prepare() -> None:
    """Compute what depends on no profile once, before this process forks."""
    _calls()


def _calls() -> tuple[Call, ...]:
    if not _known:
        mmap = _covers_mmap(), _announced_mmap()
        _known.append((ioctl(announced()), ("mmap", *mmap), ("mmap2", *mmap)))
    return _known[0]


def _announced_mmap() -> list[list[dict[str, Any]]]:
    file, no_offset, at_zero = _SHARED | _ANONYMOUS, _compare(_OFFSET, _EQUAL, 0), _compare(_ADDRESS, _EQUAL, 0)
    return [
        [_masked(_FLAGS, file, _SHARED), _compare(_OFFSET, _OTHER, 0)],
        [_masked(_FLAGS, file | _FIXED, _SHARED | _FIXED), no_offset, at_zero],
        [_masked(_FLAGS, file | _FIXED | _NOREPLACE, _SHARED | _NOREPLACE), no_offset, at_zero],
    ]


def _covers_mmap() -> list[list[dict[str, Any]]]:
    file, no_offset = _SHARED | _ANONYMOUS, _compare(_OFFSET, _EQUAL, 0)
    return [
        [_masked(_FLAGS, _SHARED, 0)],
        [_masked(_FLAGS, file, file)],
        [_masked(_FLAGS, file, _SHARED), no_offset, _compare(_ADDRESS, _OTHER, 0)],
        [_masked(_FLAGS, file | _FIXED | _NOREPLACE, _SHARED), no_offset, _compare(_ADDRESS, _EQUAL, 0)],
    ]


def _rule(name: str, answer: Mapping[str, Any], arguments: list[dict[str, Any]]) -> dict[str, Any]:
    return {"names": [name], **answer, "args": arguments}


def _compare(index: int, how: str, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": how}


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    # In this comparison "value" is the mask and "valueTwo" what the masked argument must be (seccomp_rule_add(3)).
    return {"index": index, "value": mask, "valueTwo": value, "op": _MASKED}


def _without(entry: object, refused: Sequence[str]) -> object:
    if not isinstance(entry, dict) or not isinstance(entry.get("subArchitectures"), list):
        return entry
    return {**entry, "subArchitectures": [word for word in entry["subArchitectures"] if word not in refused]}
