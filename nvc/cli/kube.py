"""``nvc-py kube``: the programs of a Kubernetes node (click commands; nothing on the start-up path imports this).

Modules of ``nvc.kube`` that need grpc or the Kubernetes client are imported by the command that is called.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from nvc import sim
from nvc.base.errors import DeviceError, InitializationError, InputError, PrivilegeError, UsageError, reason
from nvc.cli.settings import Settings
from nvc.kube.names import CDI_DIRECTORY, KUBELET_DIRECTORY
from nvc.kube.plugin_config import GPU, MIG_STRATEGIES, PluginConfig, equal, parse
from nvc.model import Host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.cdi.gather import Surroundings
    from nvc.kube.plugin_devices import Resource
    from nvc.model import Inventory

#: Bytes of a plugin's configuration. A ConfigMap has no more than a mebibyte.
_CONFIG_LIMIT = 1 << 20
#: Seconds to wait for the agent.
_AGENT_S = 2.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kube() -> None:
    """Kubernetes: pods get GPUs, and shares of GPUs that the guard holds.

    These commands need Python's grpcio, protobuf and kubernetes (the extra `kube` of the package).
    """


@kube.command("device-plugin")
@click.option("--config", metavar="FILE", help="Configuration of NVIDIA's device plugin, version v1.")
@click.option("--replicas", type=int, metavar="N", help="Give every GPU in N equal shares.")
@click.option("--resource", metavar="NAME", help=f"What the shares of --replicas are called.  [default: {GPU}]")
@click.option("--mig-strategy", type=click.Choice(MIG_STRATEGIES), help="How MIG devices are offered.  [default: none]")
@click.option("--kubelet", default=KUBELET_DIRECTORY, show_default=True, metavar="DIR", help="The kubelet's directory.")
@click.option("--cdi-dir", default=CDI_DIRECTORY, show_default=True, metavar="DIR", help="Where CDI specs are written.")
@click.option(
    "--hook", metavar="FILE", help="The program that CDI hooks start.  [default: nvc-cdi-hook beside this one]"
)
@click.option("--dry-run", is_flag=True, help="Print what pods would get, and change nothing.")
@click.pass_obj
def device_plugin(
    settings: Settings | None,
    config: str | None,
    replicas: int | None,
    resource: str | None,
    mig_strategy: str | None,
    kubelet: str,
    cdi_dir: str,
    hook: str | None,
    dry_run: bool,
) -> None:
    """Offer GPUs, and equal shares of them, to a kubelet without DRA, until SIGTERM.

    Pods ask with `limits: {nvidia.com/gpu: 1}`. Of N shares of a GPU each has its memory divided by N and the same
    weight, which the guard holds whatever the pod says. The configuration file of NVIDIA's plugin is taken as it is;
    docs/reference/kube-device-plugin.md has its keys. Amounts (memory: 10Gi) need DRA: `nvc-py kube driver`.

    The container engine must look for CDI specs in --cdi-dir, and start containers with nvc-runtime.

    \b
        nvc-py kube device-plugin --replicas 4 --dry-run
        nvc-py kube device-plugin --config /etc/nvc/device-plugin.yaml
    """
    chosen = _plugin_config(config, replicas, resource, mig_strategy)
    general = settings or Settings()
    if chosen.driver_root.rstrip("/") != general.root.rstrip("/") and not general.sim:
        raise InputError(
            f"flags.nvidiaDriverRoot is {chosen.driver_root}, and the driver is looked for below {general.root}",
            hint=f"nvc-py --root={chosen.driver_root} kube device-plugin ...",
        )
    if not dry_run and os.geteuid() != 0:
        raise PrivilegeError("the device plugin is root's", hint="sudo, or --dry-run to see what pods would get")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    found = _machine(general, stop, wait=chosen.wait and not dry_run)
    if found is None:
        return
    host, inventory, around = found
    from nvc.kube import plugin_cdi
    from nvc.kube.plugin_devices import resources

    offered, notes = resources(inventory.gpus, chosen)
    for line in (*chosen.notes, *notes):
        click.echo(f"note: {line}", err=True)
    if dry_run:
        _show(offered, inventory)
        return
    specs = plugin_cdi.specs(offered, inventory, around, host, hook or _hook(), only_one=chosen.only_one)
    plugin_cdi.write(specs, cdi_dir)
    _serve(offered, chosen, host, inventory, kubelet, stop)


@kube.command()
@click.option("--node", default="", metavar="NAME", help="The node that is looked at closer.")
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="Of the cluster.  [default: as kubectl, or the node's own]"
)
@click.option("--only", "areas", multiple=True, type=click.Choice(("cluster", "node")), help="Look at this alone.")
@click.option("--kubelet", default=KUBELET_DIRECTORY, show_default=True, metavar="DIR", help="The kubelet's directory.")
@click.option("--cdi-dir", default=CDI_DIRECTORY, show_default=True, metavar="DIR", help="Where CDI specs are.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--problems", is_flag=True, help="Show warnings and errors only.")
@click.pass_obj
def check(
    settings: Settings | None,
    node: str,
    kubeconfig: str,
    areas: tuple[str, ...],
    kubelet: str,
    cdi_dir: str,
    as_json: bool,
    problems: bool,
) -> int:
    """Look at a cluster and at this node, and say what keeps pods from GPUs, and what to do.

    Every finding says what is wrong, why it matters, and the command that fixes it. Nothing is changed. On a node it
    looks at the node too: kubelet, engine, agent, rules. docs/reference/kube-checks.md explains every check;
    `nvc-py doctor` looks at the driver.

    \b
        nvc-py kube check --problems
        nvc-py kube check --only cluster --node gpu-1 --kubeconfig ~/.kube/config
        nvc-py kube check --only node --json
    """
    from nvc.doctor import report, runner
    from nvc.doctor.finding import worst
    from nvc.doctor.probe import Probe
    from nvc.kube import api
    from nvc.kube import check as checking
    from nvc.model import Host
    from nvc.sim import host as simulated

    general = settings or Settings()
    host = simulated(general.sim) if general.sim else Host(root=general.root)
    cluster = None
    # An administrator's machine is no node: only the cluster is looked at.
    chosen = areas or (tuple(checking.AREAS) if os.path.isdir(kubelet) else ("cluster",))
    if "cluster" in chosen:
        with _extras():
            cluster = checking.Cluster(api.connect(api.kubeconfig(kubeconfig)), node)
    seen = checking.Seen(Probe(host), cluster, agent=_ask_agent, cdi=cdi_dir, kubelet=kubelet)
    found = list(runner.run(checking.checks(seen, chosen), seen.probe, general.timeout))
    if as_json:
        click.echo(report.as_json(found, simulated=host.simulated, problems=problems), nl=False)
    else:
        click.echo(report.as_text(found, colour=report.wants_colour(1), problems=problems), nl=False)
    return report.EXIT_CODES[worst(found)]


def _ask_agent() -> None:
    """Raises NvcError where none answers."""
    from nvc.agent.settings import load
    from nvc.agent.status import NO_TENANT, ask
    from nvc.guard.registered import control
    from nvc.share.protocol import Client

    with Client(control(load().directory), _AGENT_S, wait=_AGENT_S) as client:
        ask(client, after=NO_TENANT)


def _plugin_config(
    config: str | None, replicas: int | None, resource: str | None, mig_strategy: str | None
) -> PluginConfig:
    """Raises UsageError, InputError."""
    if config is None:
        return equal(1 if replicas is None else replicas, resource or GPU, mig_strategy or MIG_STRATEGIES[0])
    if replicas is not None or resource is not None:
        raise UsageError("--config says what is shared", hint="leave --replicas and --resource away")
    try:
        with open(config, "rb") as file:
            data = file.read(_CONFIG_LIMIT + 1)
    except OSError as error:
        raise InputError(f"{config}: {reason(error)}", hint="--config names a file") from error
    if len(data) > _CONFIG_LIMIT:
        raise InputError(f"{config}: more than {_CONFIG_LIMIT >> 20} MiB")
    found = parse(data, config)
    return found.replace(mig_strategy=mig_strategy) if mig_strategy else found


def _machine(settings: Settings, stop: threading.Event, *, wait: bool) -> tuple[Host, Inventory, Surroundings] | None:
    """What there is, before anything has threads: this forks. None where a signal ended the program meanwhile.

    Raises DeviceError where there is no GPU; wait: looks again until there is one.
    """
    from nvc.base.log import open_log
    from nvc.cdi.gather import gather
    from nvc.inject import api

    while True:
        with settings.replace(cache=False).open(api, open_log(settings.debug)) as context:
            inventory = context.inventory()
            if inventory.gpus:
                return context.host, inventory, gather(context.host, inventory)
        if not wait:
            raise DeviceError("this machine has no GPU", hint="`nvc-py doctor --only driver` says why none is seen")
        if stop.wait(30):
            return None


def _hook() -> str:
    from nvc.cli.cdi import find_hook

    return find_hook()


def _show(offered: tuple[Resource, ...], inventory: Inventory) -> None:
    from nvc.kube.plugin_devices import share

    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    for resource in offered:
        click.echo(f"{resource.name}: {len(resource.ids())}")
        for device in resource.devices:
            kind = f"MIG {device.profile}" if device.profile else gpus[device.gpu].model
            held = share(gpus[device.gpu], 1, resource.replicas).partition(":")[2] if resource.replicas > 1 else "whole"
            click.echo(f"    {device.index:<6}{kind:<28}{resource.replicas} x {held}")


def _serve(
    offered: tuple[Resource, ...],
    config: PluginConfig,
    host: Host,
    inventory: Inventory,
    kubelet: str,
    stop: threading.Event,
) -> None:
    from nvc.agent.journal import Journal
    from nvc.kube import places
    from nvc.kube.plugin_health import Health

    with _extras():
        from nvc.kube.plugin import Plugin, Service

    journal = Journal()
    where = places.find(host, inventory.gpus)
    with Health(host, inventory.gpus) as health:
        if health.problem:
            journal.write("warning", message=health.problem, hint="run it as root, with /dev/kmsg of the host")
        services = [Service(resource, config, where) for resource in offered]
        Plugin(services, kubelet, health.look, journal.write).run(stop)


@kube.command()
@click.option("--node", required=True, metavar="NAME", help="This node's name in the cluster.")
@click.option("--kubeconfig", default="", metavar="FILE", help="How to reach the API server.  [default: as a pod]")
@click.option("--kubelet", default=KUBELET_DIRECTORY, show_default=True, metavar="DIR", help="The kubelet's directory.")
@click.option(
    "--cdi-dir", default=CDI_DIRECTORY, show_default=True, metavar="DIR", help="Where CDI files of claims are."
)
@click.option("--instance", default="", metavar="WORD", help="Tells two processes of the driver apart: a pod's uid.")
@click.option("--hook", default="", metavar="FILE", help="The program that CDI hooks start, as the host names it.")
@click.option("--host", default="", metavar="DIR", help="In a container: where the host's root directory is.")
@click.option("--registered-file", default="", metavar="FILE", help="Made when the kubelet has registered the driver.")
@click.option(
    "--taint-effect",
    type=click.Choice(("NoSchedule", "NoExecute")),
    default="NoSchedule",
    show_default=True,
    help="Of the taint that a GPU with an error gets.",
)
@click.option(
    "--kernel-log", default="/dev/kmsg", show_default=True, metavar="FILE", help="Where errors of GPUs are seen."
)
@click.pass_obj
def driver(
    settings: Settings | None,
    node: str,
    kubeconfig: str,
    kubelet: str,
    cdi_dir: str,
    instance: str,
    hook: str,
    host: str,
    registered_file: str,
    taint_effect: str,
    kernel_log: str,
) -> None:
    """Serve resource claims of this node's GPUs, until SIGTERM.

    Publishes the GPUs in slices, and makes a CDI file of each claim that the scheduler placed here. The container
    engine reads --cdi-dir (containerd: cdi_spec_dirs), and starts containers with nvc-runtime. Containers that run do
    not need the driver.

    \b
        nvc-py kube driver --node "$(hostname)" --kubeconfig /etc/kubernetes/kubelet.conf
    """
    from nvc.cli.cdi import find_hook

    general = settings or Settings()
    if os.geteuid() != 0:
        raise PrivilegeError("the driver is root's", hint="it writes CDI files, and listens in the kubelet's directory")
    options = [f"--sim={general.sim}"] if general.sim else [f"--root={general.root}"] if general.root != "/" else []
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _extras():
        from nvc.kube import driver, journal, look
        from nvc.kube.cluster import Cluster

        words = (node, kubelet, cdi_dir, instance, hook or find_hook(), host, taint_effect, kernel_log, registered_file)
        told = driver.Settings(*words)
        cluster = Cluster(kubeconfig)
        machine = sim.host(general.sim) if general.sim else Host(root=general.root)
        command = look.command(options)
        driver.Driver(told, cluster, machine, lambda: look.find(command), journal.write).run(stop)


@kube.command()
@click.option("--kubeconfig", default="", metavar="FILE", help="How to reach the API server.  [default: as a pod]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def claims(kubeconfig: str, as_json: bool) -> int:
    """List claims of this driver that pods have; exit code 1 while there are any.

    The chart asks it before the driver is removed: nothing would unprepare these claims. `helm uninstall --no-hooks`
    goes on all the same; their shares are then held until the containers end.
    """
    with _extras():
        from nvc.kube.cluster import Cluster
        from nvc.kube.in_use import users

        found = users(Cluster(kubeconfig).claims())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    for line in found if not as_json else ():
        click.echo(line)
    return 1 if found else 0


@kube.command()
@click.pass_obj
def inventory(settings: Settings | None) -> None:
    """Print this machine's GPUs and driver files as JSON, for the driver."""
    from nvc.base.log import open_log
    from nvc.inject import api
    from nvc.kube import look

    general = settings or Settings()
    look.write(lambda: general.open(api, open_log(general.debug)))


@contextmanager
def _extras() -> Iterator[None]:
    """Say what to install where a module of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InitializationError(
            f"the Python module {error.name} is missing",
            hint="it is of the extra kube: make install EXTRAS=kube; beside the Debian package apt install "
            "python3-grpcio python3-protobuf python3-kubernetes; beside the wheel pip install grpcio protobuf "
            "kubernetes",
        ) from error
