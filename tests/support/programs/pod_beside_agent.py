"""Start the bundle of a pod with a share, with an agent that serves, with one that does not, and without one.

``pod_beside_agent.py``: in mount and pid namespaces of its own. Prints {"served", "alone", "reporting", "absent"}: the
exit code, what the container's program and the runtime said, the agent's line of the tenant, the first process by the
share's files, which Python programs ran.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
from nvc.share import store
from tests.support import cgroupview, launchers, pod_bundle
from tests.support.bed import Bed

NAMES = ("nvc-runtime", "nvc-cdi-hook")
#: What the container is: filters, links, files of the loader, nodes. It lives until the agent has its tenant.
LOOK = (
    "sleep 1; grep Seccomp /proc/self/status; ls -l /dev /usr/lib/x86_64-linux-gnu | grep -E 'nvidia|cuda' | "
    "sed 's/[A-Z][a-z]* *[0-9]* *[0-9:]*  *//'; cat /proc/driver/nvidia/params 2>/dev/null; "
    "grep -a -o 'libcuda.so[.0-9]*' /etc/ld.so.cache | sort -u"
)


def main() -> None:
    for path in ("/run", "/etc/nvc", "/var/lib"):  # what containers used is written down in the last
        if os.path.isdir(path):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    bed = Bed()
    agent = None
    try:
        machine = str(bed.machine("h100x8"))
        ran = bed.directory("ran") / "ran"
        watch(bed, ran)
        agent = start_agent(bed, machine)
        found = {"served": start(bed, machine, ran)}
        os.unlink("/run/nvc/agent/run")
        found["alone"] = start(bed, machine, ran)
        reported = report(bed)
        found["reporting"] = {**start(bed, machine, ran), "imported": reported.read_text().splitlines()}
        watch(bed, ran)
        agent.terminate()
        agent.wait(40)
        agent = None
        found["absent"] = start(bed, machine, ran)
        print(json.dumps(found))
    finally:
        if agent is not None:
            agent.kill()
            agent.wait()
        cgroupview.remove_when_empty(bed.token)
        bed.close()


def watch(bed: Bed, ran: Path) -> None:
    """Have the Python programs write their names into a file."""
    programs = bed.commands.directory.parent / "lib/nvc-py/bin"
    for name in NAMES:
        if not (programs / "python" / name).exists():
            (programs / "python").mkdir(exist_ok=True)
            shutil.move(programs / name, programs / "python" / name)
        (programs / name).write_text(f'#!/bin/sh\necho {name} >>{ran}\nexec {programs}/python/{name} "$@"\n')
        (programs / name).chmod(0o755)


def report(bed: Bed) -> Path:
    """Have what the server's processes do done by processes that write what they import into a file."""
    library, reported = bed.commands.directory.parent / "lib/nvc-py", bed.directory("reported") / "reported"
    script = launchers.CHECKOUT / "tests/system/programs/report_imports.py"
    for name in NAMES:
        work = f'{launchers.interpreter()} -IS {script} {library} {reported} {name} "$@"'
        then = '; test $? = 0 && exec runc "$@"' if name == "nvc-runtime" else ""
        (library / "bin" / name).write_text(f"#!/bin/sh\n{work}{then}\n")
    return reported


def start_agent(bed: Bed, machine: str) -> subprocess.Popen[bytes]:
    log = Path("/run/agent.log")
    with log.open("wb") as file:
        agent = subprocess.Popen([bed.commands.nvc, "--sim", machine, "agent"], stdout=file, stderr=file, env=env(bed))
    until = time.monotonic() + 40
    while b'"ready"' not in log.read_bytes():
        assert agent.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    return agent


def start(bed: Bed, machine: str, ran: Path) -> dict[str, Any]:
    cdi, tree, name = bed.directory("cdi"), bed.rootfs(), bed.name("c")
    hook = str(bed.commands.directory / "nvc-cdi-hook")
    bundle = bed.directory("bundle")
    names = pod_bundle.prepared(cdi, machine, hook, "4Gi", 30)
    pod_bundle.write(bundle, tree, ["/bin/sh", "-c", LOOK], cdi, names)
    config = json.loads((bundle / "config.json").read_text())
    config["linux"]["cgroupsPath"] = f"/{bed.token}/{name}"
    (bundle / "config.json").write_text(json.dumps(config))
    ran.write_text("")
    words = [bed.commands.runtime, "--root", "/run/state", "run", "--bundle", str(bundle), name]
    made = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**env(bed), "NVC_SIM": machine}}
    with subprocess.Popen(words, **made) as process:
        pid = recorded(process, name)
        out, err = process.communicate()
    lines = Path("/run/agent.log").read_text().splitlines()
    tenants = [line for line in lines if '"tenant"' in line and name in line]
    return {
        "code": process.returncode,
        "out": out,
        "err": err,
        "tenant": tenants[-1] if tenants else "",
        "recorded": pid,
        "programs": ran.read_text().split(),
    }


def recorded(process: subprocess.Popen[str], name: str) -> int:
    """The container's first process, as its share's files say; 0 where it ended without one."""
    while process.poll() is None:
        try:
            found = store.entry(name)
        except (OSError, ValueError):
            found = None  # half made
        if found is not None:
            with found:
                return found.record.pid
        time.sleep(0.01)
    return 0


def env(bed: Bed) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **bed.env}


if __name__ == "__main__":
    main()
