"""Compare two installed versions: ``python -m tools.versions BEFORE AFTER``, both prefixes of ``make install``.

What a container pays is measured on a simulated machine of each version's own, in pairs of one run: the hook for a
container that asks for no GPU, and a whole ``podman run`` whose prestart hook gives it one. With ``--counts`` what does
not depend on what else the machine does: instructions (valgrind, of all processes), system calls (strace), page faults.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support import cgroupview
from tests.support.bed import Bed
from tests.support.bundle import Container, Hook
from tests.support.engines import Podman
from tools.bench import machine_facts
from tools.counting import counted
from tools.measuring import Failed, Row, interleave, markdown, spawn


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="versions", description=__doc__.split("\n", 1)[0])
    parser.add_argument("before", type=Path, help="prefix of the older version")
    parser.add_argument("after", type=Path, help="prefix of the newer version")
    parser.add_argument("--rounds", type=int, default=21, help="pairs of each row (default 21)")
    parser.add_argument("--counts", action="store_true", help="count, in place of times")
    parser.add_argument("--names", nargs=2, default=("before", "after"), help="what to call them in the report")
    parser.add_argument("--write", metavar="FILE", help="also write the report to FILE")
    options = parser.parse_args(argv)
    bed = Bed()
    try:
        prefixes = options.before / "bin", options.after / "bin"
        table = counted(bed, *prefixes) if options.counts else markdown(_rows(bed, *prefixes, options.rounds))
    except (Failed, OSError, RuntimeError) as error:
        print(f"versions: {error}", file=sys.stderr)
        return 1
    finally:
        bed.close()
    facts = "".join(f"- {name}: {value}\n" for name, value in machine_facts())
    names = f"- before: {options.names[0]}\n- after: {options.names[1]}\n"
    words = "--counts" if options.counts else f"--rounds {options.rounds}"
    command = f"- command: `python -m tools.versions BEFORE AFTER {words}`\n"
    report = f"# Two versions, one machine (SIMULATED)\n\n{facts}{names}{command}\n{table}"
    print(report)
    if options.write:
        Path(options.write).write_text(report)
    return 0


def _rows(bed: Bed, before: Path, after: Path, rounds: int) -> list[Row]:
    directory = bed.bundle(Container(bed.base, ["/bin/true"], [f"V{i}={'x' * 40}" for i in range(20)]))
    state = bed.directory("state") / "state.json"
    data = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": os.getpid(), "bundle": str(directory)}
    state.write_text(json.dumps(data))
    early = interleave(
        Row("hook, container without a GPU: after", "before"),
        rounds * 3,
        lambda _: spawn([str(after / "nvc-hook"), "prestart"], stdin=str(state)) * 1e3,
        lambda _: spawn([str(before / "nvc-hook"), "prestart"], stdin=str(state)) * 1e3,
    )
    engines = {prefix: _engine(bed, prefix) for prefix in (before, after)}
    for prefix in (before, after):  # the inventory and the page cache
        _podman(bed, engines[prefix])
    whole = interleave(
        Row("`podman run` with a GPU: after", "before"),
        rounds,
        lambda _: _podman(bed, engines[after]),
        lambda _: _podman(bed, engines[before]),
    )
    return [early, whole]


def _engine(bed: Bed, commands: Path) -> Podman:
    """Podman whose prestart hook is this version's, for a simulated machine that this version made."""
    machine = bed.directory("machine") / "h200"
    spawn([str(commands / "nvc-py"), "sim", "create", str(machine), "--machine", "h200"])
    view = next(view for view in cgroupview.available() if view.name in ("hybrid", "v1", "v2"))
    engine = Podman("runc", view, bed.directory("podman"), bed.preload("runc", view.name), bed.env)
    environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    hook = Hook(str(commands / "nvc-hook"), ["nvc-hook", "--sim", str(machine), "prestart"], environment)
    engine.prepare({"prestart": hook})
    return engine


def _podman(bed: Bed, engine: Podman) -> float:
    """Milliseconds of one container, from start to end. Raises Failed when it did not get its GPU."""
    tree, name = bed.rootfs(), bed.name("c")
    start = time.perf_counter()
    result = engine.run(tree, name, ["test", "-c", "/dev/nvidia0"], ["NVIDIA_VISIBLE_DEVICES=all"])
    seconds = time.perf_counter() - start
    engine.clean(name)
    if result.code != 0:
        raise Failed(f"podman run: exit status {result.code}: {result.text}")
    return seconds * 1e3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
