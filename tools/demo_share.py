"""The part of ``make demo`` about shares: two containers on one GPU, one of them with 2 GiB of it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable

from nvc.share import store
from tests.support import fuse
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.native import build
from tests.support.runtimes import OciRuntime, Result

Say = Callable[[str], None]
SHARE = "mem=2Gi,cap=50%"
_MEMORY = "--query-gpu=memory.total,memory.used", "--format=csv"
#: Pieces of 64 MiB until an allocation is refused, at most that many.
_ALLOCATE = ("/usr/bin/cuda_alloc", "60", "64")


def simulated(bed: Bed, runtime: OciRuntime, say: Say) -> bool:
    """On a simulated machine with a served driver. False when a container does not get its share."""
    why = fuse.missing()
    if why:
        say(f"\n=== no simulated resource manager, so no shares here: {why}")
        return True
    name = bed.new_machine("h200")
    place = str(bed.machine(name))
    say("\n=== SIMULATED machine: h200, with a simulated resource manager behind its device nodes")
    bed.call(bed.commands.nvc, "sim", "start", place, check=True)
    try:
        return _compare(bed, runtime, name, say)
    finally:
        bed.call(bed.commands.nvc, "sim", "stop", place, check=True)
        _forget(bed)


def real(bed: Bed, runtime: OciRuntime, say: Say) -> bool:
    """On a GPU: what nvidia-smi says in a container with a share, and in one without."""
    try:
        for share in ("", SHARE):
            result = _run(bed, runtime, "", ["nvidia-smi", *_MEMORY], share)
            say(f"\n--- {runtime.name}, annotation nvc.share={share or '(none)'}: nvidia-smi {' '.join(_MEMORY)}")
            say(textwrap.indent(result.text.rstrip(), "    "))
        return result.code == 0 and "2048 MiB" in result.out
    finally:
        _forget(bed)


def _compare(bed: Bed, runtime: OciRuntime, machine: str, say: Say) -> bool:
    seen = {}
    for share in ("", SHARE):
        smi = _run(bed, runtime, machine, ["nvidia-smi", *_MEMORY], share)
        allocated = _run(bed, runtime, machine, _ALLOCATE, share)
        if smi.code or allocated.code:
            say(f"  the container did not run: {(smi if smi.code else allocated).text}")
            return False
        seen[share] = _words(allocated)
        say(f"  a container {f'with the annotation nvc.share={share}' if share else 'without a share'}:")
        say(f"    nvidia-smi: {smi.out.splitlines()[-1].strip()}")
        pieces, refused = seen[share]["plain"], seen[share]["plain_error"]
        end = "then CUDA_ERROR_OUT_OF_MEMORY" if refused == 2 else "all that it asked for"
        context = seen[share]["start_total_kib"] - seen[share]["start_free_kib"] >> 10
        say(f"    cuMemAlloc: {pieces} pieces of 64 MiB beside the CUDA context's {context} MiB, {end}")
    return seen[SHARE]["plain_error"] == 2 and seen[""]["plain_error"] == 0


def _run(bed: Bed, runtime: OciRuntime, machine: str, command: list[str] | tuple[str, ...], share: str) -> Result:
    tree = bed.rootfs()
    if command[0] == _ALLOCATE[0]:
        shutil.copy(build("cuda_alloc") / "cuda_alloc", tree / _ALLOCATE[0][1:])
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]}
    annotations = {"nvc.share": share} if share else {}
    return bed.run(runtime, Container(tree, command, gpu_env("all"), hooks, annotations=annotations))


def _words(result: Result) -> dict[str, int]:
    pairs = (line.partition("=") for line in result.out.splitlines())
    return {key: int(value) for key, _, value in pairs if value.isdigit()}


def _forget(bed: Bed) -> None:
    """Entries of our containers: they would go with the next container that has a share."""
    for entry in store.entries()[0]:
        with entry:
            if bed.token in entry.record.rootfs:
                store.remove(entry.record.key)
