"""config.json: what is used is checked, what is not used is ignored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hook.bundle import CONFIG_LIMIT, Bundle, decode, read, rootfs
from nvc.base.errors import InputError
from rpc.codec import dumps

GOOD: dict[str, Any] = {"ociVersion": "1.0.2", "process": {"env": ["A=1"]}, "root": {"path": "rootfs"}}


def test_takes_what_it_needs_and_ignores_the_rest() -> None:
    config = {**GOOD, "hooks": {"prestart": 7}, "linux": [], "x-unknown": None}

    assert decode(dumps(config), "/b") == Bundle("/b", ("A=1",), "rootfs", privileged=False)


@pytest.mark.parametrize(
    ("capabilities", "privileged"),
    [
        pytest.param(None, False, id="none"),
        pytest.param({}, False, id="empty"),
        pytest.param({"bounding": None}, False, id="null set"),
        pytest.param({"bounding": ["CAP_KILL", "CAP_SYS_ADMIN"]}, True, id="bounding"),
        pytest.param({"effective": ["CAP_SYS_ADMIN"]}, False, id="effective does not count"),
        pytest.param({"bounding": ["cap_sys_admin"]}, False, id="other case does not count"),
        pytest.param(["CAP_SYS_ADMIN"], True, id="flat list of 1.0.0-rc1"),
        pytest.param(["CAP_KILL"], False, id="flat list without it"),
    ],
)
def test_privileged_is_cap_sys_admin_in_the_bounding_set(capabilities: object, privileged: bool) -> None:
    config = {**GOOD, "process": {"capabilities": capabilities}}

    assert privileged is decode(dumps(config), "/b").privileged


@pytest.mark.parametrize("env", [{}, {"env": None}, {"env": []}])
def test_no_environment_is_an_empty_one(env: dict[str, Any]) -> None:
    assert decode(dumps({**GOOD, "process": env}), "/b").env == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"ociVersion": None}, "ociVersion is missing", id="no version"),
        pytest.param({"ociVersion": 1}, "ociVersion is missing or not a string", id="version is a number"),
        pytest.param({"process": None}, "process is missing", id="no process"),
        pytest.param({"process": []}, "process is missing or not an object", id="process is a list"),
        pytest.param({"root": None}, "root is missing", id="no root"),
        pytest.param({"root": "rootfs"}, "root is missing or not an object", id="root is a string"),
        pytest.param({"root": {"path": 7}}, "root.path is not a path", id="root.path is a number"),
        pytest.param({"root": {"path": "a\0b"}}, "root.path is not a path", id="NUL in root.path"),
        pytest.param({"process": {"env": "A=1"}}, "process.env is not a list", id="env is a string"),
        pytest.param({"process": {"env": ["A=1", 2]}}, "process.env is not a list", id="env holds a number"),
        pytest.param({"process": {"capabilities": "all"}}, "process.capabilities is not", id="capabilities text"),
        pytest.param({"process": {"capabilities": {"bounding": 1}}}, "process.capabilities", id="bounding a number"),
        pytest.param({"process": {"capabilities": [1]}}, "process.capabilities", id="capability a number"),
    ],
)
def test_refuses_with_the_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^input error: /b/config.json: {words}"):
        decode(dumps({**GOOD, **changes}), "/b")


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\x80", b"{} {}", b"[]", b"0"])
def test_refuses_what_is_no_json_object(data: bytes) -> None:
    with pytest.raises(InputError, match=r"/b/config\.json: not (a )?JSON"):
        decode(data, "/b")


@pytest.mark.parametrize(
    ("reported", "configured", "expected"),
    [
        pytest.param("", "rootfs", "/b/rootfs", id="runc: relative to the bundle"),
        pytest.param("", "/images/1", "/images/1", id="runc: absolute"),
        pytest.param("rootfs", "ignored", "/b/rootfs", id="crun: relative"),
        pytest.param("/images/1", "rootfs", "/images/1", id="crun: absolute, before config.json's"),
    ],
)
def test_rootfs(reported: str, configured: str, expected: str) -> None:
    assert expected == rootfs(Bundle("/b", (), configured, privileged=False), reported)


@pytest.mark.parametrize("path", ["/", "//", "/.", "/x/..", "../", "///./"])
def test_the_hosts_root_is_no_rootfs(path: str) -> None:
    with pytest.raises(InputError, match="invalid rootfs directory"):
        rootfs(Bundle("/b", (), path, privileged=False), "")


def test_no_rootfs_is_an_error() -> None:
    with pytest.raises(InputError, match=r"root\.path is missing"):
        rootfs(Bundle("/b", (), "", privileged=False), "")


def test_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}" * 9)

    assert read(str(tmp_path)) == b"{}" * 9


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        read(str(tmp_path))


def test_directory_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()

    with pytest.raises(InputError, match="not a regular file"):
        read(str(tmp_path))


def test_fifo_in_its_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")

    with pytest.raises(InputError, match="not a regular file"):
        read(str(tmp_path))


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(CONFIG_LIMIT + 1)

    with pytest.raises(InputError, match="larger than 3 MiB"):
        read(str(tmp_path))


def test_path_that_is_too_long() -> None:
    with pytest.raises(InputError, match="File name too long"):
        read("/" + "a" * 5000)


CRI = {"sandbox-namespace": "team-a", "sandbox-name": "trainer-0", "container-name": "main"}


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        ({f"io.kubernetes.cri.{key}": value for key, value in CRI.items()}, "team-a/trainer-0/main"),
        (
            {"io.kubernetes.pod.namespace": "n", "io.kubernetes.pod.name": "p", "io.kubernetes.container.name": "c"},
            "n/p/c",
        ),
        ({"nerdctl/namespace": "default", "nerdctl/name": "web"}, "default//web"),
        ({"io.kubernetes.cri.container-name": "main"}, "//main"),
        ({"io.kubernetes.cri.sandbox-name": "pause"}, ""),
        ({"io.kubernetes.cri.container-name": "a\n\x1b[2J", "io.kubernetes.cri.sandbox-name": "p"}, "/p/"),
        ({"nerdctl/name": "../../etc", "nerdctl/namespace": "x/y"}, "//"),
        ({"nerdctl/name": "a" * 254}, "//"),
        ({"org.example/name": "web"}, ""),
        ({}, ""),
    ],
)
def test_the_engines_name_of_a_container_is_for_people(annotations: dict[str, str], name: str) -> None:
    """Attack: users of some engines write annotations, and nothing of them may reach a terminal or a path."""
    assert decode(dumps({**GOOD, "annotations": annotations}), "/b").name == name


CRIO = {"io.kubernetes.cri-o.ContainerType": "container"}
DEVICE = {"cdi.k8s.io/x": "nvidia.com/gpu=all"}


@pytest.mark.parametrize(
    ("own", "kubelets", "counts"),
    [
        ({}, '{"io.kubernetes.container.hash": "1"}', False),
        ({}, '{"cdi.k8s.io/x": "nvidia.com/gpu=all"}', True),
        ({}, '{"cdi.k8s.io/x": "nvidia.com/gpu=0"}', False),
        ({"io.kubernetes.cri-o.ContainerType": "sandbox"}, '{"cdi.k8s.io/x": "nvidia.com/gpu=all"}', False),
        ({}, "", False),
        ({}, "[]", False),
        ({}, "\udcff", False),
    ],
)
def test_of_a_pods_own_annotations_none_names_devices(own: dict[str, str], kubelets: str, counts: bool) -> None:
    """Attack: CRI-O gives containers their pod's annotations, which users write."""
    shares = {"nvc.share": "mem=1Gi", "nvc.guard": "off"}
    given = {**DEVICE, **shares, **CRIO, **own, "io.kubernetes.cri-o.Annotations": kubelets}
    found = decode(dumps({**GOOD, "annotations": given}), "/b").annotations
    assert dict(found) == {**shares, **(DEVICE if counts else {})}


def test_an_engine_that_adds_none_of_a_pods_annotations_gives_all_that_count() -> None:
    assert dict(decode(dumps({**GOOD, "annotations": DEVICE}), "/b").annotations) == DEVICE
