"""The driver of resource claims on one node: joins the machine, the API server and the kubelet.

Running pods need it for nothing: their files are there, and the guard holds them. It may end and start at any time.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from nvc.base.errors import DeviceError, NvcError, reason
from nvc.base.record import Record
from nvc.cdi.generate import GenerateOptions
from nvc.driver.locate import host_path
from nvc.driver.machinekey import machine_key
from nvc.guard.registered import control
from nvc.kube import claims, prepare, quantity, xids
from nvc.kube.devices import Condition, bus_id, devices, slices
from nvc.kube.edits import template
from nvc.kube.kubelet import HealthBoard, Sockets, Work
from nvc.kube.names import CDI_DIRECTORY, KUBELET_DIRECTORY
from nvc.kube.prepare import Machine
from nvc.kube.publish import Publisher
from nvc.kube.records import Records
from nvc.kube.report import Reporter, state
from nvc.kube.turn import Turn
from nvc.share import abi, policyfile
from nvc.share.protocol import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvc.kube.cluster import Cluster
    from nvc.kube.prepare import Allotted
    from nvc.model import Gpu, Host, Inventory

#: Seconds between looks at the machine, and at the agent.
LOOK_S, _AGENT_S = 2.0, 10.0
#: Looks in a row without an agent, after which GPUs are said to have no guard: an agent that restarts is away for one.
_AGENT_LOOKS = 6
_PCI = "/sys/bus/pci/devices"


class Settings(Record):
    """The driver's settings.

    node: name of its Node object. kubelet: the kubelet's directory. cdi: directory of claims' CDI files. instance: a
    word that tells it from another process of the driver on this node. hook: program that CDI hooks start, as the host
    names it. host: directory below which this program sees the host's files, "" where it runs on the host. effect: of
    the taint of a GPU that is not fit for use. kernel_log: where the driver reports errors of GPUs.
    registered: file that is made when the kubelet has registered this process, "" for none.
    """

    node: str
    kubelet: str = KUBELET_DIRECTORY
    cdi: str = CDI_DIRECTORY
    instance: str = ""
    hook: str = GenerateOptions().hook_path
    host: str = ""
    effect: str = "NoSchedule"
    kernel_log: str = xids.KERNEL_LOG
    registered: str = ""


class Driver(Work):
    """One process of the driver."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        host: Host,
        find: Callable[[], Inventory],
        say: Callable[..., None],
    ) -> None:
        """host: where the machine is looked at. find: its inventory. say: takes an event's name and fields."""
        self._settings = settings
        self._cluster = cluster
        self._host = host
        self._find = find
        self._say = say
        self._records = Records(settings.cdi)
        self._turn = Turn(settings.cdi)
        self._publisher = Publisher(cluster, settings.node, say, self._turn.is_ours)
        self._reporter = Reporter(cluster, settings.node, say)
        self._board = HealthBoard()
        self._sockets = Sockets(settings.kubelet, settings.instance, settings.node, self, self._board, say)
        self._log = xids.KernelLog(settings.kernel_log)
        self._machine: Machine | None = None
        self._inventory: Inventory | None = None
        self._published: Inventory | None = None
        self._roots: dict[str, str] = {}
        self._key: object = self
        self._condition = Condition(effect=settings.effect)
        self._agent_missed, self._agent_looked = _AGENT_LOOKS, 0
        #: Of the last look: whether it was this process's turn to publish, whether something is still to be published.
        self._publishes, self._is_behind = True, False
        self._failed: tuple[str, str, str] | None = None

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop``. Raises InitializationError."""
        if self._log.problem:
            self._say("warning", message=self._log.problem, hint="give the container /dev/kmsg and CAP_SYSLOG")
        self.look()
        self._sockets.start()
        self._publisher.start()
        self._say("ready", node=self._settings.node, endpoint=self._sockets.endpoint)
        try:
            while not stop.wait(LOOK_S):
                self._look_again()
        finally:
            self._sockets.stop()
            self._publisher.stop()
            self._reporter.close()
            self._turn.close()
        self._say("ended")

    def look(self) -> bool:
        """Look at the machine; whether something of it changed. Raises nothing that another look may not mend."""
        key = machine_key(self._host)
        if key != self._key:
            self._refresh()
            self._key = key
        if self._inventory is None:
            return False
        present = self._machine.gpus if self._machine is not None else {}
        addresses = {gpu.uuid: bus_id(gpu) for gpu in self._inventory.gpus}
        problems = xids.problems(self._log.look(), addresses, present)
        condition = Condition(self._is_guarded(), self._roots, problems, self._settings.effect)
        if self._inventory is self._published and condition == self._condition:
            return False
        wanted = slices(self._inventory, condition)
        known = devices(self._inventory).values()
        self._board.set({one.name: problems.get(one.gpu, "") for one in known})
        if condition.problems != self._condition.problems:
            self._say("health", problems=dict(problems))
        changed = self._publisher.set(wanted)
        self._condition, self._published = condition, self._inventory
        return changed

    def prepare(self, namespace: str, name: str, uid: str) -> Sequence[Allotted]:
        claims.check_uid(uid)
        data = self._cluster.claim(namespace, name)
        claim = claims.decode(data, uid, self._settings.node)
        machine = self._machine
        if machine is None:
            raise DeviceError(f"prepare: {claim}: this node has no GPU now", hint="nvc-py doctor on the node says why")
        policy, _ = policyfile.load_node(self._config())
        found = prepare.prepare(claim, machine, self._records, policy)
        self._reporter.ready(data, [self._state(one) for one in found])
        return found

    def unprepare(self, uid: str) -> None:
        prepare.unprepare(uid, self._records)

    def refused(self, namespace: str, name: str, uid: str, message: str) -> None:
        self._reporter.refused(namespace, name, uid, message)

    def registered(self) -> None:
        if self._settings.registered:
            try:
                with open(self._settings.registered, "wb"):
                    pass
            except OSError as error:
                self._say("warning", message=f"{self._settings.registered}: {reason(error)}", hint="--registered-file")

    def _refresh(self) -> None:
        """Find the machine's GPUs anew, and write claims' files with the driver's files of now."""
        try:
            inventory = self._find()
        except NvcError as error:
            self._say("warning", message=f"GPUs: {error}", hint=error.hint)
            self._machine = None
            return
        before = self._inventory.gpus if self._inventory is not None else ()
        self._machine = self._made(inventory)
        # A GPU that went stays in the slices, with a taint, until another one has its name.
        uuids, indices = {gpu.uuid for gpu in inventory.gpus}, {gpu.index for gpu in inventory.gpus}
        gone = tuple(gpu for gpu in before if gpu.uuid not in uuids and gpu.index not in indices)
        self._inventory = inventory.replace(gpus=(*inventory.gpus, *gone))
        self._roots = self._find_roots(self._inventory.gpus)
        self._say("machine", gpus=len(inventory.gpus), driver=inventory.driver.nvrm_version)

    def _made(self, inventory: Inventory) -> Machine | None:
        """None where there is no GPU, or where files cannot be written."""
        if not inventory.gpus:
            return None
        options = GenerateOptions(hook_path=self._settings.hook)
        try:
            made = template(inventory, self._host, options, named=self._named())
            machine = Machine(devices(inventory), {gpu.uuid: gpu for gpu in inventory.gpus}, made)
            count = prepare.rewrite(self._records, machine, lambda text: self._say("warning", message=text, hint=""))
        except NvcError as error:
            self._say("warning", message=f"CDI files: {error}", hint=error.hint)
            return None
        self._say("rewritten", claims=count)
        return machine

    def _named(self) -> Host:
        """The host as its own programs see it."""
        outer = self._settings.host.rstrip("/")
        if not outer:
            return self._host
        inner = {name: getattr(self._host, name).removeprefix(outer) for name in ("root", "dev_root")}
        return self._host.replace(root=inner["root"] or "/", dev_root=inner["dev_root"])

    def _config(self) -> str:
        """The node's rules, "" for the usual file, which need not exist."""
        path = f"{self._settings.host}{policyfile.CONFIG}"
        return path if self._settings.host and os.path.exists(path) else ""

    def _is_guarded(self) -> bool:
        """Whether the guard can hold shares here. An agent that restarts changes nothing."""
        inventory = self._inventory
        if inventory is None or not abi.knows(inventory.driver.nvrm_version):
            return False
        self._agent_looked -= 1
        if self._agent_looked < 0:
            self._agent_looked = int(_AGENT_S / LOOK_S)
            self._agent_missed = 0 if self._has_agent() else self._agent_missed + 1
        return self._agent_missed < _AGENT_LOOKS

    def _has_agent(self) -> bool:
        try:
            policy, directory = policyfile.load_node(self._config())
            if policy.guard == "off":
                return False
            with Client(control(f"{self._settings.host}{directory}"), 1.0):
                return True
        except NvcError:
            return False

    def _find_roots(self, gpus: Sequence[Gpu]) -> dict[str, str]:
        """PCI address -> the root complex, as the kernel names it."""
        found = {}
        for address in {bus_id(gpu) for gpu in gpus}:
            parts = os.path.realpath(host_path(self._host.system, f"{_PCI}/{address}")).split("/")
            root = next((part for part in parts if part.startswith("pci") and ":" in part), "")
            if root:
                found[address] = root
        return found

    def _state(self, one: Allotted) -> dict[str, object]:
        record = one.prepared
        data: dict[str, object] = {"uuid": record.uuid}
        if record.share:
            data |= {"memory": quantity.write_memory(record.memory), "compute": record.compute, "share": record.share}
        return state(self._settings.node, one.device, one.share_id, data)

    def _look_again(self) -> None:
        """Look, and publish what changed, now or at a later look. What fails here keeps no claim from being served."""
        before, self._publishes = self._publishes, self._turn.is_ours()
        self._is_behind |= self._publishes > before
        failed: tuple[str, str, str] | None = None
        try:
            self._is_behind |= self.look()
            if self._is_behind:
                self._publisher.sync()
                self._is_behind = False
        except NvcError as error:
            failed = "slices-failed", error.message, error.hint
        except Exception as error:  # a fault of this program: the next look may be spared it
            failed = "warning", f"internal error: {type(error).__name__}: {error}", "please report it"
        if failed is not None and failed != self._failed:
            self._say(failed[0], message=failed[1], hint=failed[2])
        self._failed = failed
