"""The format: what is read, what is refused and where, which version a spec needs, and that nothing gets lost."""

from __future__ import annotations

import copy
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.cdi import rules, text
from nvc.cdi.spec import (
    KEYS,
    CdiDevice,
    CdiDeviceNode,
    CdiEdits,
    CdiHook,
    CdiIntelRdt,
    CdiMount,
    CdiNetDevice,
    CdiSpec,
    decode,
    encode,
)
from nvc.cdi.validate import advice

GOOD: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "vendor.com/class",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/y"}]}}],
    "containerEdits": {
        "env": ["A=b"],
        "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}],
        "hooks": [{"hookName": "createContainer", "path": "/bin/h", "env": ["P=q"]}],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with one value changed; the path is a dotted one, numbers are indexes."""
    data = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    place: Any = data
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[int(last) if last.isdigit() else last] = value
    return data


def found(data: object) -> list[str]:
    return [str(problem) for problem in decode(data)[1]]


def test_a_good_spec_is_read_and_written_back() -> None:
    spec, problems = decode(GOOD)
    assert problems == ()
    assert spec is not None
    assert encode(spec) == GOOD


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        pytest.param("cdiVersion", "2.0.0", "cdiVersion: '2.0.0' is none of 0.3.0,", id="unknown-version"),
        pytest.param("cdiVersion", 0.5, "cdiVersion: expected a text, got float (0.5)", id="version-is-a-number"),
        pytest.param("cdiVersion", "0.3.0", "cdiVersion: 0.3.0 is too old for hostPath, name: needs 0.5.0", id="old"),
        pytest.param("kind", "vendor", "kind: 'vendor' is not VENDOR/CLASS", id="no-class"),
        pytest.param("kind", "/c", "kind: the vendor is empty", id="no-vendor"),
        pytest.param("kind", "9v/c", "kind: the vendor '9v' does not start with a letter", id="vendor-starts"),
        pytest.param("kind", "v-/c", "kind: the vendor 'v-' does not end with a letter or digit", id="vendor-ends"),
        pytest.param("kind", "v/c d", "kind: the class 'c d' contains ' '", id="class-has-a-blank"),
        pytest.param("kind", "v/ä", "kind: the class 'ä' does not start with a letter", id="not-ascii"),
        pytest.param("kind", "v/c/d", "kind: the class 'c/d' contains '/'", id="two-slashes"),
        pytest.param("devices", [], "devices: empty", id="no-device"),
        pytest.param("devices", {}, "devices: expected a list, got an object", id="devices-is-an-object"),
        pytest.param("devices", None, "devices: missing", id="null-is-missing"),
        pytest.param("devices.0", 3, "devices[0]: expected an object, got a number (3)", id="device-is-a-number"),
        pytest.param("devices.0.name", "", "devices[0].name: the name is empty", id="empty-name"),
        pytest.param("devices.0.name", 0, "devices[0].name: expected a text, got a number (0)", id="name-is-a-number"),
        pytest.param("devices.0.name", "-x", "devices[0].name: the name '-x' does not start and end", id="name-starts"),
        pytest.param("devices.0.name", "a/b", "devices[0].name: the name 'a/b' contains '/'", id="slash-in-name"),
        pytest.param("devices.0.containerEdits", {}, "devices[0].containerEdits: empty", id="empty-edits"),
        pytest.param("devices.0.nmae", "x", "devices[0].nmae: unknown key", id="unknown-key"),
        pytest.param("containerEdits.env.0", "A", "containerEdits.env[0]: 'A' is not NAME=VALUE", id="env"),
        pytest.param("containerEdits.env.0", "=b", "containerEdits.env[0]: '=b' is not NAME=VALUE", id="env-no-name"),
        pytest.param("containerEdits.env", "A=b", "containerEdits.env: expected a list, got a text", id="env-no-list"),
        pytest.param("containerEdits.mounts.0.hostPath", "", "containerEdits.mounts[0].hostPath: empty", id="mount"),
        pytest.param(
            "containerEdits.mounts.0.type", "bind", "containerEdits.mounts[0].type", id="not-a-problem-in-0.5.0"
        ),
        pytest.param(
            "containerEdits.hooks.0.hookName", "start", "containerEdits.hooks[0].hookName: 'start' is none", id="stage"
        ),
        pytest.param("containerEdits.hooks.0.path", "", "containerEdits.hooks[0].path: empty", id="hook-path"),
        pytest.param("containerEdits.hooks.0.timeout", -1, "containerEdits.hooks[0].timeout: -1", id="timeout"),
        pytest.param("containerEdits.hooks.0.timeout", True, "expected a number, got a flag (True)", id="flag"),
        pytest.param(
            "containerEdits.additionalGids", [1], "0.5.0 is too old for additionalGids: needs 0.7.0", id="gids"
        ),
        pytest.param("annotations", {"a": "b"}, "0.5.0 is too old for annotations: needs 0.6.0", id="annotations"),
        pytest.param("annotations", {"a": 1}, "annotations.a: expected a text", id="annotation-is-a-number"),
        pytest.param("annotations", [], "annotations: expected an object, got a list", id="annotations-is-a-list"),
        pytest.param(
            "devices.0.containerEdits.deviceNodes.0.permissions", "rx", "permissions: 'rx' has other letters", id="perm"
        ),
        pytest.param("devices.0.containerEdits.deviceNodes.0.type", "z", "type: 'z' is none of b, c, u, p", id="type"),
        pytest.param("devices.0.containerEdits.deviceNodes.0.major", -1, "major: -1 is out of range", id="major"),
        pytest.param("devices.0.containerEdits.deviceNodes.0.fileMode", 66666, "fileMode: 66666 is not", id="mode"),
        pytest.param(
            "devices.0.containerEdits.intelRdt", {"closID": "../x"}, "intelRdt.closID: not the name", id="class-of-rdt"
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(path: str, value: object, expected: str) -> None:
    problems = found(changed(path, value))
    if path.endswith("mounts.0.type"):
        assert problems == []
        return
    assert [problem for problem in problems if expected in problem] != [], problems


@pytest.mark.parametrize("data", [None, [], 3, "x", {}])
def test_what_is_no_spec_at_all(data: object) -> None:
    spec, problems = decode(data)
    assert spec is None
    assert problems != ()


def test_every_mistake_is_told_at_once() -> None:
    data = changed("kind", 3)
    data["devices"][0]["name"] = None
    assert len(found(data)) == 2


def test_a_name_twice() -> None:
    data = changed("devices", [GOOD["devices"][0]] * 2)
    assert found(data) == ["devices[1].name: '0' is the name of devices[0] too"]


EDIT = CdiEdits(env=("A=b",))


@pytest.mark.parametrize(
    ("edits", "version"),
    [
        pytest.param(EDIT, "0.3.0", id="base"),
        pytest.param(CdiEdits(mounts=(CdiMount("/a", "/b", type="bind"),)), "0.4.0", id="mount-type"),
        pytest.param(CdiEdits(device_nodes=(CdiDeviceNode("/a", host_path="/b"),)), "0.5.0", id="host-path"),
        pytest.param(CdiEdits(additional_gids=(7,)), "0.7.0", id="gids"),
        pytest.param(CdiEdits(intel_rdt=CdiIntelRdt("x")), "0.7.0", id="rdt"),
        pytest.param(CdiEdits(intel_rdt=CdiIntelRdt(enable_monitoring=True)), "1.1.0", id="rdt-monitoring"),
        pytest.param(CdiEdits(net_devices=(CdiNetDevice("eth0", "e"),)), "1.1.0", id="net"),
    ],
)
def test_the_oldest_version_that_has_it(edits: CdiEdits, version: str) -> None:
    assert CdiSpec("", "v/c", (CdiDevice("d", edits),)).minimum_version() == version
    assert CdiSpec("", "v/c", (CdiDevice("d", EDIT),), edits).minimum_version() == version


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        pytest.param(CdiSpec("", "v/c", (CdiDevice("0", EDIT),)), "0.5.0", id="name-starts-with-a-digit"),
        pytest.param(CdiSpec("", "v/c.d", (CdiDevice("d", EDIT),)), "0.6.0", id="dot-in-class"),
        pytest.param(CdiSpec("", "v.w/c", (CdiDevice("d", EDIT),)), "0.3.0", id="dot-in-vendor"),
        pytest.param(CdiSpec("", "v/c", (CdiDevice("d", EDIT, {"a": "b"}),)), "0.6.0", id="annotations"),
    ],
)
def test_versions_that_names_need(spec: CdiSpec, version: str) -> None:
    assert spec.minimum_version() == version


def test_a_hook_without_environment_is_advised_against() -> None:
    spec, problems = decode(changed("containerEdits.hooks.0.env", []))
    assert problems == ()
    assert spec is not None
    assert ["containerEdits.hooks[0].env"] == [problem.field for problem in advice(spec)]


def test_every_record_of_the_format_is_in_the_table() -> None:
    for cls, rows in KEYS.items():
        assert {field for field, *_ in rows} == set(cls._fields)
        assert len({key for _, key, *_ in rows}) == len(rows)


# Round trip: any spec of which the rules hold comes back equal from both texts.

_letters = string.ascii_letters + string.digits
_text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
_texts = st.lists(_text, max_size=3).map(tuple)
_env = st.lists(st.builds(lambda a, b: f"{a.replace('=', 'x')}={b}", _text, _text), max_size=3).map(tuple)
_uint = st.integers(0, (1 << 32) - 1)
_name = st.text(_letters + "_-.:", max_size=8).map(lambda inner: f"a{inner}z")
_class = st.text(_letters + "_-.", max_size=6).map(lambda inner: f"a{inner}z")
_nodes = st.builds(
    CdiDeviceNode,
    path=_text,
    host_path=st.one_of(st.just(""), _text),
    type=st.sampled_from(("", *rules.NODE_TYPES)),
    major=_uint,
    minor=_uint,
    file_mode=st.integers(0, 0o7777),
    permissions=st.sampled_from(("", "r", "rw", "rwm", "none")),
    uid=_uint,
    gid=_uint,
)
_hooks = st.builds(
    CdiHook,
    hook_name=st.sampled_from(rules.HOOK_NAMES),
    path=_text,
    args=_texts,
    env=_env,
    timeout=st.integers(0, 1 << 30),
)
_mounts = st.builds(CdiMount, host_path=_text, container_path=_text, options=_texts, type=st.sampled_from(("", "bind")))
_edits = st.builds(
    CdiEdits,
    env=_env,
    device_nodes=st.lists(_nodes, max_size=2).map(tuple),
    hooks=st.lists(_hooks, max_size=2).map(tuple),
    mounts=st.lists(_mounts, max_size=2).map(tuple),
    net_devices=st.lists(st.builds(CdiNetDevice, host_interface_name=_text, name=_text), max_size=1).map(tuple),
    additional_gids=st.lists(_uint, max_size=2).map(tuple),
    intel_rdt=st.one_of(
        st.none(), st.builds(CdiIntelRdt, mem_bw_schema=_text, schemata=_texts, enable_cmt=st.booleans())
    ),
)
_specs = st.builds(
    CdiSpec,
    version=st.just("1.1.0"),
    kind=st.builds(lambda v, c: f"{v}/{c}", _class, _class),
    devices=st.dictionaries(_name, _edits.filter(lambda edits: edits != CdiEdits()), min_size=1, max_size=3).map(
        lambda named: tuple(CdiDevice(name, edits) for name, edits in named.items())
    ),
    edits=_edits,
    annotations=st.dictionaries(_text, _text, max_size=2),
)


@given(_specs, st.sampled_from(text.FORMATS))
def test_nothing_gets_lost_on_the_way_through_a_file(spec: CdiSpec, form: str) -> None:
    assert decode(text.read(text.write(spec, form).encode(), form)) == (spec, ())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["cdiVersion", "kind", "devices", "containerEdits", "name", "hooks", "env", "mounts", "x"]
                ),
                inner,
            )
        ),
    )
)
def test_no_data_makes_decoding_fail_otherwise_than_by_problems(data: object) -> None:
    spec, problems = decode(data)
    assert (spec is None) == (problems != ())


@pytest.mark.parametrize(
    ("content", "form", "expected"),
    [
        pytest.param(b"\xff", "yaml", "not UTF-8 (byte 0)", id="bytes"),
        pytest.param(b"a: [1", "yaml", "line 1: ", id="yaml-syntax"),
        pytest.param(b"a: 1\na: 2\n", "yaml", "line 2: key 'a' twice", id="yaml-key-twice"),
        pytest.param(b"1: 2\n", "yaml", "line 1: key 1 is not a text", id="yaml-number-as-key"),
        pytest.param(b"a: !!python/object:os.system x", "yaml", "line 1: could not determine a constructor", id="tag"),
        pytest.param(b"--- a\n--- b\n", "yaml", "line 2: but found another document", id="two-documents"),
        pytest.param(b"a: \x00", "yaml", "not YAML: ", id="nul"),
        pytest.param(b'{"a": 1,}', "json", "line 1: not JSON: ", id="json-syntax"),
        pytest.param(b'{"a": 1, "a": 2}', "json", "key 'a' twice in one object", id="json-key-twice"),
        pytest.param(b"[" * 100000, "json", "nested too deep", id="json-depth"),
        pytest.param(b"[" * 5000, "yaml", "nested too deep", id="yaml-depth"),
        pytest.param(b" " * (text.SIZE_LIMIT + 1), "json", "more than 8 MiB", id="size"),
        pytest.param(
            b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10)) for i in range(7)),
            "yaml",
            "more than 1048576 values",
            id="aliases-that-multiply",
        ),
    ],
)
def test_texts_that_are_refused(content: bytes, form: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        text.read(content, form)
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("written", "expected"),
    [("0:1", "0:1"), ("0.5.0", "0.5.0"), ("2001-01-01", "2001-01-01"), ("12", 12), ("0x10", 16), ("1.5", "1.5")],
)
def test_plain_words_of_yaml_as_engines_read_them(written: str, expected: object) -> None:
    assert text.read(f"a: {written}".encode(), "yaml") == {"a": expected}


def test_a_nul_character_is_a_problem_in_its_place() -> None:
    """Paths with one reached the system calls of nvc-runtime as an internal error."""
    node = {"path": "/dev/a", "hostPath": "/dev/\0"}
    data = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [node], "env": ["A=\0"]}}],
    }
    assert found(data) == [
        "devices[0].containerEdits.env[0]: contains a NUL character",
        "devices[0].containerEdits.deviceNodes[0].hostPath: contains a NUL character",
    ]
