"""The filter that announces calls of the driver: by the rules it is made of, and compiled by libseccomp."""

from __future__ import annotations

import itertools
import json
import tempfile
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.guard.filter import fault, merge
from nvc.guard.profile import ALLOW, LOG, NOTIFY
from tests.support import announce, cbpf

NATIVE = "SCMP_ARCH_X86_64"
IOCTL, MMAP, GETPID, IOCTL32, MMAP2 = 16, 9, 39, 54, 192
ERRNO = "SCMP_ACT_ERRNO"
#: The part of Docker's and Podman's default profile that matters here: everything is refused that is not named.
DEFAULT_DENY = {
    "defaultAction": ERRNO,
    "architectures": [NATIVE, "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "syscalls": [
        {"names": ["getpid", "ioctl", "mmap", "mmap2", "read"], "action": ALLOW},
        {"names": ["personality"], "action": ALLOW, "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
    ],
}


def merged(profile: dict[str, Any] | None) -> dict[str, Any]:
    return merge(profile, "/run/nvc/agent/listen", "share", NATIVE)


def compile_profile(profile: dict[str, Any]) -> bytes:
    """What runc and crun do with a profile: each rule handed to libseccomp, for every architecture."""
    seccomp = pytest.importorskip("pyseccomp")
    actions = {
        ALLOW: seccomp.ALLOW,
        LOG: seccomp.LOG,
        ERRNO: seccomp.ERRNO(1),
        NOTIFY: seccomp.NOTIFY,
    }
    compiled = seccomp.SyscallFilter(actions[profile["defaultAction"]])
    for word in profile["architectures"]:
        if word != NATIVE:
            compiled.add_arch(getattr(seccomp.Arch, word.removeprefix("SCMP_ARCH_")))
    for rule in profile["syscalls"]:
        if rule["action"] == profile["defaultAction"]:
            continue
        for name in rule["names"]:
            arguments = []
            for one in rule.get("args", ()):
                operation = getattr(seccomp, one["op"].removeprefix("SCMP_CMP_"))
                pair = (one["value"], one["valueTwo"]) if "valueTwo" in one else (one["value"],)
                arguments.append(seccomp.Arg(one["index"], operation, *pair))
            compiled.add_rule(actions[rule["action"]], name, *arguments)
    with tempfile.TemporaryFile() as file:
        compiled.export_bpf(file)
        file.seek(0)
        return file.read()


@pytest.mark.parametrize("filtered", ["unconfined", "default deny", "by hand"])
def test_a_mapping_that_can_be_managed_memory_is_announced_and_no_other(filtered: str) -> None:
    """It is shared, of a file, and its offset is the address where it comes to lie (UVM's rule)."""
    if filtered == "by hand":
        program = announce.program()
    else:
        program = compile_profile(merged(DEFAULT_DENY if filtered == "default deny" else None))
    high = 0x7000_0000_0000
    for low, noreplace in itertools.product(range(0x40), (0, 0x100000)):
        flags = low | noreplace
        is_shared, is_fixed = flags & 1 and not flags & 0x20, flags & 0x10 or noreplace
        for address, offset in itertools.product((0, 0x1000, 1 << 32, high), (0, 0x1000, 1 << 32, high)):
            expected = "notify" if is_shared and (offset or (address == 0 and is_fixed)) else "allow"
            arguments = (address, 4096, 3, flags, 3, offset)
            assert cbpf.run(program, cbpf.X86_64, MMAP, arguments) == expected, arguments


def test_an_ioctl_by_the_32_bit_entry_is_announced_too() -> None:
    program = compile_profile(merged(DEFAULT_DENY))
    assert cbpf.run(program, cbpf.I386, IOCTL32, (3, 0xC030462B)) == "notify"
    assert cbpf.run(program, cbpf.I386, IOCTL32, (3, 0x5401)) == "allow"
    assert cbpf.run(program, cbpf.I386, MMAP2, (0x40000000, 4096, 3, 1, 3, 0x40000)) == "notify"


def test_the_x32_entry_is_refused() -> None:
    for profile in (None, DEFAULT_DENY):
        program = compile_profile(merged(profile))
        assert cbpf.run(program, cbpf.X86_64, 0x40000000 | 514, (3, 0xC030462B)).startswith("kill")


@pytest.mark.parametrize("profile", [None, DEFAULT_DENY])
def test_the_32_bit_entry_is_refused_on_demand(profile: dict[str, Any] | None) -> None:
    program = compile_profile(merge(profile, "/run/nvc/agent/listen", "share", NATIVE, second=False))
    assert cbpf.run(program, cbpf.I386, 90, ()).startswith("kill")
    assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, 0xC030462B)) == "notify"
    sub = {"archMap": [{"architecture": NATIVE, "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]}]}
    engine = merge({**DEFAULT_DENY, **sub}, "/x", "", NATIVE, second=False)
    assert engine["archMap"] == [{"architecture": NATIVE, "subArchitectures": []}]


def test_what_a_profile_refuses_stays_refused_and_what_it_permits_permitted() -> None:
    program = compile_profile(merged(DEFAULT_DENY))
    assert cbpf.run(program, cbpf.X86_64, GETPID, ()) == "allow"
    assert cbpf.run(program, cbpf.X86_64, 165, ()) == "errno"  # mount
    assert cbpf.run(program, cbpf.X86_64, 135, (8,)) == "allow"  # personality
    assert cbpf.run(program, cbpf.X86_64, 135, (9,)) == "errno"


def test_a_profile_that_refuses_ioctl_is_not_widened() -> None:
    profile = {"defaultAction": ERRNO, "architectures": [NATIVE], "syscalls": [{"names": ["mmap"], "action": ALLOW}]}
    program = compile_profile(merged(profile))
    assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, 0xC030462B)) == "errno"
    assert cbpf.run(program, cbpf.X86_64, MMAP, (0, 0, 0, 1, 3, 4096)) == "notify"
    refused = {"defaultAction": ALLOW, "architectures": [NATIVE], "syscalls": [{"names": ["ioctl"], "action": ERRNO}]}
    assert cbpf.run(compile_profile(merged(refused)), cbpf.X86_64, IOCTL, (3, 0xC030462B)) == "errno"


def test_everything_else_of_a_profile_stays() -> None:
    profile = {**DEFAULT_DENY, "flags": ["SECCOMP_FILTER_FLAG_LOG"], "defaultErrnoRet": 38, "comment": "x"}
    before = json.dumps(profile, sort_keys=True)
    result = merged(profile)
    assert json.dumps(profile, sort_keys=True) == before
    assert result["flags"] == ["SECCOMP_FILTER_FLAG_LOG"]
    assert result["defaultErrnoRet"] == 38
    assert result["comment"] == "x"
    assert result["syscalls"][0] == {"names": ["getpid", "read"], "action": ALLOW}
    assert (result["listenerPath"], result["listenerMetadata"]) == ("/run/nvc/agent/listen", "share")


@pytest.mark.parametrize(
    ("profile", "part"),
    [
        pytest.param({**DEFAULT_DENY, "listenerPath": "/x"}, "listener already", id="another listener"),
        pytest.param(
            {"defaultAction": ALLOW, "syscalls": [{"names": ["mkdir"], "action": NOTIFY}]},
            "listener already",
            id="an announcement without a listener",
        ),
        pytest.param(
            {"defaultAction": ERRNO, "syscalls": [{"names": ["ioctl"], "action": ALLOW, "args": [{"index": 1}]}]},
            "conditions of its own for ioctl",
            id="conditions on ioctl",
        ),
        pytest.param(
            {"defaultAction": ERRNO, "syscalls": [{"names": ["mmap"], "action": ALLOW, "includes": {"caps": ["X"]}}]},
            "conditions of its own for mmap",
            id="conditions of the engine",
        ),
        pytest.param(
            {
                "defaultAction": ERRNO,
                "syscalls": [{"names": ["ioctl"], "action": ALLOW}, {"names": ["ioctl"], "action": LOG}],
            },
            "several actions for ioctl",
            id="two actions",
        ),
        pytest.param({"syscalls": []}, "defaultAction", id="no default action"),
        pytest.param({"defaultAction": ALLOW, "syscalls": {}}, "not a list", id="rules that are no list"),
        pytest.param({"defaultAction": ALLOW, "syscalls": [3]}, "syscalls[0]", id="a rule that is no object"),
        pytest.param({"defaultAction": ALLOW, "syscalls": [{"name": "ioctl"}]}, "'name'", id="the old single name"),
        pytest.param([], "not an object", id="no object"),
    ],
)
def test_a_profile_that_cannot_be_kept_is_refused_with_the_reason(profile: Any, part: str) -> None:
    with pytest.raises(InputError, match=part.replace("[", r"\[").replace("]", r"\]")):
        merged(profile)


# What counts as the guard's filter in a config.json.

LISTENER = "/run/nvc/agent/listen"
IOCTL_ALLOC = {"index": 1, "value": 0xC030462B, "op": "SCMP_CMP_EQ"}


@pytest.mark.parametrize("profile", [None, DEFAULT_DENY, {"defaultAction": LOG, "architectures": [NATIVE]}])
def test_what_was_merged_is_the_guards_also_after_an_engine_wrote_it_anew(profile: dict[str, Any] | None) -> None:
    made = merged(profile)
    assert fault(made, LISTENER) == ""
    rewritten = json.loads(json.dumps(made))
    for rule in rewritten["syscalls"]:
        for one in rule.get("args") or ():
            if not one.get("valueTwo"):
                one.pop("valueTwo", None)  # omitempty, of the OCI runtime-spec's Go types
        rule["errnoRet"] = None
        rule["args"] = list(reversed(rule["args"])) if rule.get("args") else None
    rewritten["syscalls"].reverse()
    assert fault(rewritten, LISTENER) == ""


def test_a_call_that_a_profile_refuses_as_a_whole_needs_no_rules() -> None:
    refusing = {"names": ["ioctl", "mmap2"], "action": ERRNO}
    assert fault(merged({"defaultAction": ALLOW, "architectures": [NATIVE], "syscalls": [refusing]}), LISTENER) == ""


def _without_first(profile: dict[str, Any], action: str, name: str = "ioctl") -> dict[str, Any]:
    rules = list(profile["syscalls"])
    rules.remove(next(one for one in rules if one["names"] == [name] and one["action"] == action))
    return {**profile, "syscalls": rules}


def _with(profile: dict[str, Any], *rules: dict[str, Any]) -> dict[str, Any]:
    return {**profile, "syscalls": [*rules, *profile["syscalls"]]}


#: What a runtime reads otherwise than as it is written (profile.py), as additions to a profile or to its first rule.
UNREADABLE: dict[str, dict[str, Any]] = {
    "a name that ends in C": {"names": ["ioctl\0x"]},
    "a name in other letters": {"names": ["IOCTL"]},
    "a name with a space": {"names": ["ioctl "]},
    "an empty name": {"names": [""]},
    "a key in other letters": {"Names": ["ioctl"]},
    "a key that ends in C": {"names\0": ["ioctl"]},
    "an action that ends in C": {"action": "SCMP_ACT_ALLOW\0"},
    "an argument's key in other letters": {"args": [{"index": 0, "value": 8, "Value": 9, "op": "SCMP_CMP_EQ"}]},
    "conditions that are no list": {"args": {"index": 0}},
}
UNREADABLE_PROFILE: dict[str, dict[str, Any]] = {
    "rules in other letters": {"Syscalls": [{"names": ["ioctl", "mmap"], "action": ALLOW}]},
    "an architecture in other letters": {"architectures": [NATIVE, "SCMP_ARCH_x32"]},
    "an architecture in short": {"architectures": [NATIVE, "x32"]},
    "an architecture that ends in C": {"architectures": [NATIVE, "SCMP_ARCH_X32\0a"]},
    "a flag of another kind": {"flags": ["TSYNC"]},
    "architectures that are no list": {"archMap": 5},
    "an architecture that is no object": {"archMap": ["SCMP_ARCH_X86"]},
    "other architectures that are no list": {"archMap": [{"architecture": NATIVE, "subArchitectures": 5}]},
    "an unknown key": {"x-unknown": {"a": 1}},
    "a default that ends in C": {"defaultAction": "SCMP_ACT_ERRNO\0"},
}


@pytest.mark.parametrize("base", [None, DEFAULT_DENY], ids=["unconfined", "denying"])
@pytest.mark.parametrize("attack", [*UNREADABLE, *UNREADABLE_PROFILE])
def test_what_runtimes_read_otherwise_is_refused(attack: str, base: dict[str, Any] | None) -> None:
    """Attack: "ioctl\\0x" is no ioctl here and one for libseccomp, whose rule for the whole call swallows ours."""

    def forged(profile: dict[str, Any]) -> dict[str, Any]:
        if attack in UNREADABLE_PROFILE:
            return {**profile, **UNREADABLE_PROFILE[attack]}
        first = {"names": ["getpid"], "action": LOG, **UNREADABLE[attack]}
        return {**profile, "syscalls": [first, *profile["syscalls"]]}

    with pytest.raises(InputError, match="seccomp profile"):
        merged(forged(base or {"defaultAction": ALLOW, "architectures": [NATIVE], "syscalls": []}))
    assert fault(forged(merged(base)), LISTENER)


UNCONFINED, DENYING = merged(None), merged(DEFAULT_DENY)
FORGED: dict[str, dict[str, Any]] = {
    "another listener": {**UNCONFINED, "listenerPath": "/run/nvc/agent/../other"},
    "no rules": {**UNCONFINED, "syscalls": []},
    "rules that are no list": {**UNCONFINED, "syscalls": {}},
    "a rule that runtimes read otherwise": _with(UNCONFINED, {"name": "ioctl", "action": ALLOW}),
    "one announcement less": _without_first(UNCONFINED, NOTIFY),
    "one announcement less, of a mapping": _without_first(UNCONFINED, NOTIFY, "mmap"),
    "one announcement less, of the 32-bit mapping": _without_first(UNCONFINED, NOTIFY, "mmap2"),
    "one announcement twice": _with(UNCONFINED, next(one for one in UNCONFINED["syscalls"] if one["action"] == NOTIFY)),
    "permitted as a whole": _with(UNCONFINED, {"names": ["ioctl"], "action": ALLOW}),
    "permitted among others": _with(UNCONFINED, {"names": ["read", "ioctl"], "action": ALLOW}),
    "one number permitted before": _with(UNCONFINED, {"names": ["ioctl"], "action": ALLOW, "args": [IOCTL_ALLOC]}),
    "one number permitted where all are denied": _with(
        DENYING, {"names": ["ioctl"], "action": ALLOW, "args": [IOCTL_ALLOC]}
    ),
    "a tracer decides": _with(UNCONFINED, {"names": ["ioctl"], "action": "SCMP_ACT_TRACE", "args": [IOCTL_ALLOC]}),
    "a tracer decides of all": {**UNCONFINED, "syscalls": [{"names": ["ioctl", "mmap"], "action": "SCMP_ACT_TRACE"}]},
    "a tracer decides by default": {**DENYING, "defaultAction": "SCMP_ACT_TRACE"},
    "everything is announced": {**UNCONFINED, "defaultAction": NOTIFY},
    "other calls are announced": _with(UNCONFINED, {"names": ["mkdir"], "action": NOTIFY}),
    "a call and another are announced": _with(UNCONFINED, {"names": ["ioctl", "mkdir"], "action": NOTIFY}),
    "announced as a whole": {**UNCONFINED, "syscalls": [{"names": ["ioctl"], "action": NOTIFY}]},
    "the cover of another action": {
        **DENYING,
        "syscalls": [
            one | ({"action": "SCMP_ACT_TRACE"} if one["action"] == ALLOW else {}) for one in DENYING["syscalls"]
        ],
    },
    "a cover less, where nothing else is refused": _without_first({**DENYING, "defaultAction": ALLOW}, ALLOW),
    "x32": {**UNCONFINED, "architectures": [NATIVE, "SCMP_ARCH_X32"]},
    "no default": {name: value for name, value in UNCONFINED.items() if name != "defaultAction"},
}


@pytest.mark.parametrize("attack", FORGED)
def test_a_forged_profile_is_not_the_guards(attack: str) -> None:
    assert fault(FORGED[attack], LISTENER)


@pytest.mark.parametrize(
    "profile",
    [
        {"defaultAction": ALLOW, "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_TRACE"}]},
        {"defaultAction": ALLOW, "syscalls": [{"names": ["mmap", "mmap2"], "action": "SCMP_ACT_TRACE"}]},
        {"defaultAction": "SCMP_ACT_TRACE", "syscalls": []},
        {"defaultAction": "SCMP_ACT_TRACE", "syscalls": [{"names": ["ioctl", "mmap"], "action": ALLOW}]},
        {"defaultAction": "SCMP_ACT_OF_TOMORROW", "syscalls": []},
        {"defaultAction": ALLOW, "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_OF_TOMORROW"}]},
    ],
)
def test_a_profile_that_leaves_the_decision_open_cannot_be_guarded(profile: dict[str, Any]) -> None:
    """SECCOMP_RET_TRACE: the tracer, a process of the container's, may let the call pass (seccomp(2))."""
    with pytest.raises(InputError, match="cannot be guarded"):
        merged({"architectures": [NATIVE], **profile})
