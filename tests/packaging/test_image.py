"""The chart's image: a valid OCI layout that the same files make again, and what its init container does to a host."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import install_host  # of packaging/, which conftest.py adds
import oci
import pytest

EPOCH = 1_700_000_000


def tree(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def test_the_layout_is_what_its_digests_say(tmp_path: Path) -> None:
    stage = tree(tmp_path / "a", {"opt/nvc-py/bin/nvc-py": "x", "opt/nvc-py/lib/y": "y"})
    (stage / "opt/nvc-py/bin/nvc-py").chmod(0o755)
    layers = [oci.layer(oci.staged(stage), {"/bin": "usr/bin"}, EPOCH)]

    files = dict(oci.layout(layers, "amd64", EPOCH))

    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    index = json.loads(files["index.json"])
    manifest = json.loads(files[blob(index["manifests"][0])])
    config = json.loads(files[blob(manifest["config"])])
    assert [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers] == config["rootfs"]["diff_ids"]
    layer = io.BytesIO(gzip.decompress(files[blob(manifest["layers"][0])]))
    with tarfile.open(fileobj=layer) as unpacked:
        entries = {one.name: (one.mode, one.type, one.mtime, one.uid, one.uname) for one in unpacked}
        link = unpacked.getmember("bin").linkname
    assert entries["opt/nvc-py/bin/nvc-py"] == (0o755, tarfile.REGTYPE, EPOCH, 0, "root")
    assert entries["opt/nvc-py/lib/y"][0] == 0o644
    assert link == "usr/bin"
    assert list(entries).index("opt/nvc-py") < list(entries).index("opt/nvc-py/lib/y")


def blob(descriptor: dict[str, str]) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def test_the_same_files_make_the_same_image(tmp_path: Path) -> None:
    """Neither times, owners, masks nor the order in which files were made come into it."""
    files = {"opt/b": "1", "opt/a": "2", "opt/c/d": "3"}
    one = tree(tmp_path / "one", files)
    other = tree(tmp_path / "other", dict(reversed(files.items())))
    os.utime(other / "opt/a", (1, 1))
    (other / "opt/b").chmod(0o600)

    first, second = (dict(oci.layout([oci.layer(oci.staged(at), {}, EPOCH)], "amd64", EPOCH)) for at in (one, other))

    assert first == second


def test_the_interpreter_comes_with_its_library_and_what_it_is_linked_to() -> None:
    base = oci.interpreter(sys.executable)
    program = os.path.realpath(sys.executable)

    assert base[program] == Path(program)
    assert any(name.endswith("/json/__init__.py") for name in base)
    assert not any("/test/" in name or "__pycache__" in name for name in base)
    assert any(Path(name).name.startswith("libc.so") for name in oci.libraries([Path(program)]))


def test_programs_come_to_the_host_and_go_with_the_next_version(tmp_path: Path) -> None:
    old = tree(tmp_path / "old", {"bin/nvc-py": "1", "lib/gone/file": "x", "lib/nvc-py/preload/v1/libnvc-shim.so": "1"})
    new = tree(tmp_path / "new", {"bin/nvc-py": "2", "lib/nvc-py/preload/v2/libnvc-shim.so": "2"})
    (new / "bin/nvc-hook").symlink_to("nvc-py")
    target = tmp_path / "host/opt/nvc-py"
    install_host.install(old, target)

    with (target / "bin/nvc-py").open() as running:
        install_host.install(new, target)
        install_host.install(new, target)
        kept = running.read()

    found = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    preload = {"lib/nvc-py/preload/v1/libnvc-shim.so", "lib/nvc-py/preload/v2/libnvc-shim.so"}
    assert found == {"bin/nvc-py", "bin/nvc-hook", *preload}
    assert ((target / "bin/nvc-py").read_text(), kept) == ("2", "1")
    assert os.readlink(target / "bin/nvc-hook") == "nvc-py"


def test_a_link_of_the_hosts_is_not_followed(tmp_path: Path) -> None:
    """What stands in the way of a directory or file is replaced; what a link points to stays."""
    elsewhere = tree(tmp_path / "elsewhere", {"precious": "x"})
    target = tmp_path / "target"
    target.mkdir()
    (target / "lib").symlink_to(elsewhere)

    install_host.install(tree(tmp_path / "new", {"lib/nvc-py/file": "1"}), target)

    assert not (target / "lib").is_symlink()
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]


def test_an_installation_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(OSError, match="file"):
        install_host.install(tree(tmp_path / "new", {"a": "1"}), tmp_path / "file/target")
