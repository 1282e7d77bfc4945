"""``make demo``: a real container gets a GPU from our hook, and shows what it sees.

On a machine with an NVIDIA driver it runs nvidia-smi in containers. On any other it makes simulated machines, says so,
and puts the machine's view, a container without the hook and a container with it side by side. Leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support import cgroupview, runtimes, sight
from tests.support.bed import Bed, Unavailable, device_nodes, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime
from tests.support.sight import Sight
from tools import demo_share

DRIVER = "/proc/driver/nvidia/version"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: A device of the driver that no container here gets.
FOREIGN = ("/dev/not-mine", 195, 77)
_WIDTHS = (22, 36, 22, 40)


def say(text: str = "") -> None:
    print(text, flush=True)


def main() -> int:
    if os.geteuid() != 0:
        say("demo: containers, device nodes and cgroups need root.  Run:  sudo make demo")
        return 1
    lacking = [name for name in ("busybox", "gcc", "unshare") if not runtimes.find(name)]
    if lacking:
        say(
            f"demo: not installed: {', '.join(lacking)}.  Run:  apt-get install busybox-static gcc libc6-dev util-linux"
        )
        return 1
    start = time.monotonic()
    bed = Bed()
    try:
        runtimes_here = _runtimes(bed)
        if not runtimes_here:
            say("demo: neither runc nor crun can start containers here.  Install one:  apt-get install runc")
            return 1
        code = _real(bed, runtimes_here) if os.path.exists(DRIVER) else _simulated(bed, runtimes_here[0])
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        say(f"demo: {error}")
        code = 1
    finally:
        left = bed.close()
    say()
    for line in left:
        say(f"demo: left behind: {line}")
    say(f"{'done' if code == 0 else 'FAILED'} in {time.monotonic() - start:.1f} s; everything it made is removed again")
    if code == 0:
        say("next: make install PREFIX=/usr/local; nvc-py doctor; then Docker, Podman or Kubernetes, by README.md")
    return code or int(bool(left))


def _runtimes(bed: Bed) -> list[OciRuntime]:
    """runc and crun, each in the first cgroup view of this machine in which it works."""
    found = []
    for name in ("runc", "crun"):
        for view in cgroupview.available():
            if name == "crun" and view.name == "hybrid":
                continue
            try:
                found.append(bed.runtime(name, view.name))
                break
            except Unavailable:
                break
    return found


def _real(bed: Bed, runtimes_here: Sequence[OciRuntime]) -> int:
    say("This machine has an NVIDIA driver: " + Path(DRIVER).read_text().splitlines()[0])
    for runtime in runtimes_here:
        for title, hooks in (
            ("without our hook", {}),
            ("with our hook", {"prestart": [bed.hook("prestart", machine="")]}),
        ):
            say(f"\n--- {runtime.name}, a container {title}: nvidia-smi")
            result = bed.run(runtime, Container(bed.rootfs(), ["nvidia-smi"], gpu_env("all"), hooks))
            say(textwrap.indent(result.text.rstrip(), "    "))
            say(f"    exit code {result.code}, {result.seconds * 1000:.0f} ms")
            if hooks and result.code != 0:
                return 1
    return 0 if demo_share.real(bed, runtimes_here[0], say) else 1


def _simulated(bed: Bed, runtime: OciRuntime) -> int:
    say("This machine has no NVIDIA GPU, so this is a SIMULATED one: real containers, real mounts, device cgroups and")
    say("loader caches; the driver files and device nodes are stand-ins with nothing behind them.")
    say(f"Container runtime: {runtime.name}, cgroup {runtime.view.name}.")
    for name, wish in (("h200", "all"), ("a100-mig-dev", "")):
        say(f"\n=== SIMULATED machine: {name}")
        step = _Steps()
        machine = bed.machine(name)
        step.done("machine made")
        gpus = json.loads(bed.call(bed.commands.nvc, f"--sim={machine}", "info", "--json", check=True).out)["gpus"]
        step.done("its inventory read by `nvc-py info --json`")
        devices = wish or next(mig["uuid"] for gpu in gpus for mig in gpu["mig_devices"])
        before, _ = _look(bed, runtime, name, devices, hooked=False)
        step.done("container without the hook run")
        after, listing = _look(bed, runtime, name, devices, hooked=True)
        step.done(f"container with the hook run, NVIDIA_VISIBLE_DEVICES={devices}")
        _table(machine, before, after)
        say("\n  nvidia-smi -L (the simulated driver's), run in the container:")
        say(textwrap.indent(listing.rstrip(), "    "))
        if "GPU-" not in listing:
            return 1
    return 0 if demo_share.simulated(bed, runtime, say) else 1


class _Steps:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def done(self, what: str) -> None:
        now = time.monotonic()
        say(f"  {(now - self._last) * 1000:6.0f} ms  {what}")
        self._last = now


def _look(bed: Bed, runtime: OciRuntime, machine: str, devices: str, *, hooked: bool) -> tuple[Sight, str]:
    """What a container sees, and what nvidia-smi -L prints in it. Raises RuntimeError with the runtime's message."""
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]} if hooked else {}
    look = sight.arguments(
        nodes=["/dev/nvidia0"], make=[FOREIGN], libraries=LIBRARIES, lists=["/dev", "/dev/nvidia-caps"]
    )
    result = bed.run(runtime, Container(bed.rootfs(), look, gpu_env(devices), hooks))
    if result.code != 0:
        raise RuntimeError(f"the container did not run: {result.text}")
    if not hooked:
        return sight.read(result.out), ""
    listing = bed.run(runtime, Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env(devices), hooks))
    return sight.read(result.out), listing.text


def _table(machine: Path, before: Sight, after: Sight) -> None:
    on_machine = sorted(path.removeprefix("/dev/") for path in device_nodes(machine))
    version = (machine / "proc/driver/nvidia/version").read_text().split("  ")[1].strip()
    rows = [("", "the machine (SIMULATED)", "without the hook", "with the hook")]
    rows.append(("device nodes", " ".join(on_machine), _nodes(before), _nodes(after)))
    rows.append(("open /dev/nvidia0", "there", _opened(before, "/dev/nvidia0"), _opened(after, "/dev/nvidia0")))
    rows.append(("open another (195:77)", "-", _opened(before, FOREIGN[0]), _opened(after, FOREIGN[0])))
    for name in LIBRARIES:
        host = next((path for path in machine.rglob(f"{name[:-1]}{version}") if path.is_file()), None)
        where = "/" + str(host.relative_to(machine)) if host else ""
        rows.append((name, *(_file(path) for path in (where, before.libraries[name], after.libraries[name]))))
    params = (machine / "proc/driver/nvidia/params").read_text()
    rows.append(
        ("/proc/.../params", _modify(params), _modify(before.texts[sight.PARAMS]), _modify(after.texts[sight.PARAMS]))
    )
    say()
    for index, row in enumerate(rows):
        cells = [
            textwrap.wrap(text, width - 2, break_on_hyphens=False) or [""]
            for text, width in zip(row, _WIDTHS, strict=True)
        ]
        for line in range(max(map(len, cells))):
            words = (cell[line] if line < len(cell) else "" for cell in cells)
            say("  " + "".join(word.ljust(width) for word, width in zip(words, _WIDTHS, strict=True)).rstrip())
        if index == 0:
            say("  " + "-" * sum(_WIDTHS))
    say("  (libraries: opened by name in the container, so found through its own /etc/ld.so.cache)")


def _nodes(seen: Sight) -> str:
    names = [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name != "nvidia-caps"]
    names += [f"nvidia-caps/{name}" for name in seen.lists["/dev/nvidia-caps"]]
    return " ".join(names) or "none"


def _file(path: str) -> str:
    """A path in two words, so that a narrow column can break it."""
    return f"{os.path.basename(path)} in {os.path.dirname(path)}" if path else "not found"


def _opened(seen: Sight, path: str) -> str:
    answers = {
        "ok": "opened",
        "ENXIO": "allowed (no driver behind it)",
        "EPERM": "denied by the device cgroup",
        "ENOENT": "not there",
    }
    return answers.get(seen.nodes[path], seen.nodes[path])


def _modify(params: str) -> str:
    return next((line for line in params.splitlines() if line.startswith("ModifyDeviceFiles")), "not there")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader closed the pipe; everything is removed already
        os._exit(1)
