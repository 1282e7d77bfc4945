"""The compiled parts of a simulated machine: where they are, and writing a description into a copy of one.

``make`` builds them; after that no compiler is needed. An installation keeps them in ``native`` beside this module, a
checkout in build/native.
"""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError, reason

#: machine_load.c: this marker, padded to 32 bytes, stands before the room for the text.
_MARKER = b"@(nvc-sim baked machine text)@".ljust(32, b"\0")
_ROOM = 128 * 1024
_HERE = os.path.dirname(os.path.realpath(__file__))
DIRECTORIES = (
    os.path.join(_HERE, "native"),
    os.path.join(os.path.dirname(os.path.dirname(_HERE)), "build", "native"),
)
#: What each template is, by the name of its file.
NVML, CUDA, DXCORE, SMI, TOOL = "libnvidia-ml.so", "libcuda.so", "libdxcore.so", "nvidia-smi", "driver-tool"
MANAGER = "nvc-sim-manager"


def find(name: str) -> str:
    """The path of a compiled program. Raises DetectionError when it was not built."""
    for directory in DIRECTORIES:
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK):
            return path
    raise _missing(name)


def read(name: str) -> bytes:
    """The bytes of a template.

    Raises DetectionError when it was not built.
    """
    for directory in DIRECTORIES:
        try:
            with open(os.path.join(directory, name), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise DetectionError(f"{os.path.join(directory, name)}: {reason(error)}") from error
    raise _missing(name)


def _missing(name: str) -> DetectionError:
    return DetectionError(
        f"the simulated driver's {name} does not exist",
        hint=f"build it with `make native` (looked in {' and '.join(DIRECTORIES)})",
    )


def bake(template: bytes, text: str) -> bytes:
    """``template`` with the machine's description inside it.

    Raises DetectionError when the template has no place for it.
    """
    data = text.encode("ascii")
    place = template.find(_MARKER)
    if place < 0 or template.find(_MARKER, place + 1) >= 0 or len(data) > _ROOM:
        raise DetectionError("this build of the simulated driver cannot carry a description", hint="run `make native`")
    start = place + len(_MARKER)
    return template[:start] + data.ljust(_ROOM, b"\0") + template[start + _ROOM :]
