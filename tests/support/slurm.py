"""A Slurm cluster of two nodes on one machine: munged, slurmctld and a slurmd for each node, on loopback.

Everything lies below one directory; ports are free ones of the moment.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import daemons, leftovers, pages, userland
from tests.support.launchers import CHECKOUT
from tests.support.runtimes import Result, execute

NODES = ("n1", "n2")
#: Settings of a test cluster, beside those that a page on Slurm talks about.
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
SlurmdDebug=debug
SlurmdParameters=config_overrides
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
PropagateResourceLimits=NONE
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=2 State=UP
"""


@dataclass
class Slurm:
    """The cluster.

    gpus: of each node. gres, oci: the texts of gres.conf and oci.conf. wrap: what its daemons and
    commands run under (another userland).
    """

    token: str
    place: Path
    gpus: int
    gres: str
    oci: str
    env: Mapping[str, str]
    wrap: Sequence[str] = ()
    daemons: list[daemons.Daemon] = field(default_factory=list, init=False)

    def prepare(self, *, extra: str = "") -> None:
        """Write the configuration and make the directories. extra: more of slurm.conf."""
        for name in ("munge", "state", "containers", *(f"spool-{node}" for node in NODES)):
            (self.place / name).mkdir()
        # Containers of ordinary users are made here by themselves.
        (self.place / "containers").chmod(0o1777)
        key = self.place / "munge/key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        values = {"host": socket.gethostname(), "ports": _free_ports(3), "place": self.place, "gpus": self.gpus}
        (self.place / "slurm.conf").write_text(_CONF.format(**values) + extra)
        (self.place / "gres.conf").write_text(self.gres)
        (self.place / "oci.conf").write_text(self.oci)

    def start(self) -> None:
        """Start all daemons. Raises daemons.NotReady; what was started before is ended by stop()."""
        munge = self.place / "munge"
        words = [f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid"]
        words += [f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--foreground", "--force"]
        self._start("munged", ["munged", *words], lambda: (munge / "socket").exists())
        conf = f"{self.place}/slurm.conf"
        self._start("slurmctld", ["slurmctld", "-D", "-f", conf], lambda: self.call("scontrol", "ping").code == 0)
        for node in NODES:
            self._start(f"slurmd-{node}", ["slurmd", "-D", "-f", conf, "-N", node], lambda node=node: self._idle(node))

    def _start(self, name: str, command: Sequence[str], ready: daemons.Ready) -> None:
        # Their own log files are beside: Slurm writes to both.
        environment = {**self._env(), **self.env}
        daemon = daemons.Daemon(name, [*self.wrap, *command], environment, self.place / f"{name}.out")
        self.daemons.append(daemon)
        daemon.start(ready)

    def _idle(self, node: str) -> bool:
        return "idle" in self.call("sinfo", "--noheader", f"--nodes={node}", "--format=%T").out.split()

    def call(self, *command: str, env: Mapping[str, str] | None = None, user: Sequence[str] = ()) -> Result:
        """One of Slurm's commands. user: what makes it an ordinary user's."""
        return execute([*self.wrap, *user, *command], env={**self._env(), **(env or {})}, cwd=Path("/"))

    def stop(self) -> None:
        """End all of it, in the reverse order."""
        for daemon in reversed(self.daemons):
            daemon.stop()
        leftovers.end_processes(self.token)

    def _env(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "SLURM_CONF": f"{self.place}/slurm.conf", leftovers.VARIABLE: self.token}


def of_page(
    token: str,
    place: Path,
    machine: Path,
    runtime: str,
    env: Mapping[str, str],
    root: Path | None,
    *,
    shares: bool = False,
) -> Slurm:
    """The cluster of docs/user/engines/slurm.md, not started; all GPUs of the machine are each node's.

    env: what the runtime is started with. root, shares: of a userland, as for ``userland.wrap``.
    """
    etc = place / "etc"
    etc.mkdir()
    for name in ("nvc-slurm-prolog", "nvc-slurm-run"):
        text = (CHECKOUT / "packaging/slurm" / name).read_text().replace("/run/nvc-slurm", f"{place}/notes")
        (etc / name).write_text(text)
        (etc / name).chmod(0o755)
    (link,) = [text for _, text in pages.blocks("slurm") if text.startswith("ln ")]
    subprocess.run(["/bin/sh", "-euc", link.replace("/etc/slurm", str(etc))], check=True)
    given = " ".join(f"{name}={value}" for name, value in env.items())

    def moved(text: str) -> str:
        text = text.replace("/etc/slurm", str(etc)).replace("/run/nvc-slurm-%u", f"{place}/state-%u")
        text = text.replace("/var/spool/slurm/containers", f"{place}/containers")
        return text.replace(" nvc-runtime ", f" env {given} {runtime} ")

    wrap: list[str] = []
    if root is not None:
        # Slurm looks for its own host's name.
        hosts = place / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        cover = '[ -e /etc/hosts ] || touch /etc/hosts; mount --bind "$1" /etc/hosts; shift; exec "$@"'
        wrap = userland.wrap(root, ["sh", "-euc", cover, "hosts", str(hosts)], shares=shares)
    gpus = len(list((machine / "dev").glob("nvidia[0-9]*")))
    gres = f"NodeName=n[1-2] {pages.after('slurm', 'gres.conf').replace('/dev/', f'{machine}/dev/')}"
    gres = gres.replace("[0-7]", f"[0-{gpus - 1}]" if gpus > 1 else "0")
    cluster = Slurm(token, place, gpus, gres, moved(pages.after("slurm", "oci.conf")), {}, wrap)
    cluster.prepare(extra=moved(pages.after("slurm", "slurm.conf")))
    return cluster


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
