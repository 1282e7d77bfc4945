"""Writes the image of the chart: an OCI layout in one tar file, without a registry, a daemon or a base image.

usage: PYTHONPATH=. python packaging/oci.py STAGE PYTHON TARGET

STAGE has /opt/nvc-py as tools/install makes it. The interpreter PYTHON, its standard library and the libraries that
these need are this machine's. The same files make the same image: names are sorted, times are SOURCE_DATE_EPOCH's,
owners are root.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvc import __version__

NAME = f"nvc-py:{__version__}"
#: Image path -> the file that goes there.
Tree = Mapping[str, Path]
#: Of the standard library: what no program of ours imports, and what belongs to another place.
_LEFT_OUT = {
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
_SPEC = "application/vnd.oci.image"


def interpreter(python: str) -> dict[str, Path]:
    """The interpreter at its path, as /usr/bin/python3 too, and its standard library. Raises CalledProcessError."""
    shown = subprocess.run(
        [python, "-ISc", "import sys, sysconfig; print(sys.executable); print(sysconfig.get_path('stdlib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    program, library = shown.split()
    found = {os.path.realpath(program): Path(os.path.realpath(program))}
    for directory, names, files in os.walk(library):
        names[:] = sorted(
            name for name in names if name not in _LEFT_OUT and name != "__pycache__" and "config-" not in name
        )
        found.update({f"{directory}/{name}": Path(os.path.realpath(f"{directory}/{name}")) for name in files})
    return found


def libraries(files: Iterable[Path]) -> dict[str, Path]:
    """The shared libraries, loader included, that ldd names for ELF files."""
    programs = [str(file) for file in files if _is_dynamic(file)]
    shown = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {name: Path(os.path.realpath(name)) for name in set(re.findall(r"(/\S+) \(0x", shown))}


def _is_dynamic(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return False
    return file.suffix == ".so" or ".so." in file.name or os.access(file, os.X_OK)


def staged(stage: Path) -> dict[str, Path]:
    """The files and links below ``stage``."""
    return {f"/{path.relative_to(stage)}": path for path in stage.rglob("*") if path.is_symlink() or path.is_file()}


def layer(tree: Tree, links: Mapping[str, str], epoch: int) -> bytes:
    """The uncompressed tar of a layer. links: image path -> text of a symbolic link."""
    names = {*tree, *links}
    directories = {str(parent) for name in names for parent in Path(name).parents} - {"/"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(directories | names):
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.mtime = epoch
            entry.uname = entry.gname = "root"
            path = tree.get(name)
            if name in directories:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            elif path is None or path.is_symlink():
                entry.type, entry.mode = tarfile.SYMTYPE, 0o777
                entry.linkname = links[name] if path is None else os.readlink(path)
                tar.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size, entry.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def layout(layers: Iterable[bytes], architecture: str, epoch: int) -> Iterator[tuple[str, bytes]]:
    """The files of the OCI layout: name and content."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    descriptors, digests = [], []
    for content in layers:
        packed = gzip.compress(content, 6, mtime=0)
        digests.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
        descriptors.append(_descriptor("layer.v1.tar+gzip", packed))
        yield _blob(packed), packed
    config = _text(
        {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": {
                "Env": ["PATH=/opt/nvc-py/bin:/usr/bin"],
                "Entrypoint": ["/opt/nvc-py/bin/nvc-py"],
                "Labels": {"org.opencontainers.image.title": "nvc-py", "org.opencontainers.image.version": __version__},
            },
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    yield _blob(config), config
    manifest = _text(
        {
            "schemaVersion": 2,
            "mediaType": f"{_SPEC}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": descriptors,
        }
    )
    yield _blob(manifest), manifest
    named = {
        **_descriptor("manifest.v1+json", manifest),
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": f"docker.io/library/{NAME}",
            "org.opencontainers.image.ref.name": __version__,
        },
    }
    yield "index.json", _text({"schemaVersion": 2, "mediaType": f"{_SPEC}.index.v1+json", "manifests": [named]})
    yield "oci-layout", _text({"imageLayoutVersion": "1.0.0"})


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": f"{_SPEC}.{kind}",
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }


def _blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main(stage: Path, python: str, target: Path) -> None:
    """Write the image. Raises CalledProcessError, OSError."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    product, base = staged(stage), interpreter(python)
    base |= libraries([*base.values(), *product.values()])
    # A merged /usr, as the machine has it: a loader's path goes through the links of its directories.
    links = {f"/{name}": os.readlink(f"/{name}") for name in ("bin", "lib", "lib64") if os.path.islink(f"/{name}")}
    base = {
        os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name)): path
        for name, path in base.items()
    }
    if "/usr/bin/python3" not in base:
        links["/usr/bin/python3"] = os.path.realpath(python)
    files = sorted(layout((layer(base, links, epoch), layer(product, {}, epoch)), _architecture(), epoch))
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            tar.addfile(entry, io.BytesIO(content))


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
