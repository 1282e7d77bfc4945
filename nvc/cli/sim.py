"""``nvc-py sim``: make and describe simulated machines (click commands; nothing on the start-up path imports this)."""

from __future__ import annotations

import json

import click

from nvc.base.progress import waiting
from nvc.sim.description import DAMAGES, MachineDescription, load, names
from nvc.sim.faults import WHAT


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def sim() -> None:
    """Simulated machines: the files of a computer with NVIDIA GPUs, without the GPUs.

    A simulated machine is a directory with a driver's libraries, programs, device nodes and /proc files, made from a
    description. Every other command looks at it in place of this computer when it is given --sim DIR.
    It shows that the logic is right; only a real GPU shows that a container can compute.

    \b
        nvc-py sim list
        nvc-py sim create /tmp/machine --machine h200
        nvc-py --sim /tmp/machine list
        nvc-py sim start /tmp/machine
    """


@sim.command()
@click.argument("directory", metavar="DIR")
@click.option("--machine", "-m", required=True, metavar="NAME", help="A name from `sim list`, or a .json file.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="WORDS",
    help=f"What goes wrong in NVML: FUNCTION {WHAT}. May be repeated.",
)
@click.option("--force", is_flag=True, help="Replace the simulated machine that is in DIR.")
def create(directory: str, machine: str, faults: tuple[str, ...], force: bool) -> None:
    """Make the machine NAME in DIR, which must be missing or empty.

    All of it is made, or nothing. Device nodes can only be made by root; without them the machine says so, and
    everything but the nodes can be tried. Needs ldconfig (package libc-bin).

    \b
        sudo nvc-py sim create /tmp/machine --machine a100-mig-dev
        nvc-py sim create /tmp/mine --machine ./mine.json
        nvc-py sim create /tmp/hang --machine h200 --fault "nvmlInit hang"
    """
    from nvc.sim.create import create as make

    def warn(text: str) -> None:
        click.echo(f"warning: {text}", err=True)

    description = load(machine)
    description = description.replace(faults=(*description.faults, *faults))
    host = make(directory, description, force=force, warn=warn)
    click.echo(f"SIMULATED machine {host.simulated} is in {host.root}\nuse it with: nvc-py --sim {host.root} list")


@sim.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_machines(as_json: bool) -> None:
    """Name the machines that can be made, one line each."""
    machines = [load(name) for name in names()]
    if as_json:
        rows = [
            {"name": m.name, "summary": m.summary, "driver": m.driver_version, "gpus": len(m.gpus)} for m in machines
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(len(machine.name) for machine in machines)
    for machine in machines:
        click.echo(f"{machine.name:{width}}  {machine.summary}")


@sim.command()
@click.argument("directory", metavar="DIR")
def start(directory: str) -> None:
    """Put a simulated driver behind the device nodes of the machine in DIR.

    Until then the nodes are there and nothing answers. Afterwards programs can open them and make the driver's calls,
    in containers too: memory is limited, channels take turns. Needs root and /dev/fuse.

    \b
        sudo nvc-py sim start /tmp/machine
        sudo nvc-py sim stop /tmp/machine
    """
    from nvc.sim import serving

    with waiting("starting the simulated driver"):
        manager = serving.start(directory)
    click.echo(f"SIMULATED driver behind the nodes in {directory}/dev, process {manager.pid}")


@sim.command()
@click.argument("directory", metavar="DIR")
def stop(directory: str) -> None:
    """Take the simulated driver of the machine in DIR away again. Programs with open nodes get errors from then on."""
    from nvc.sim import serving

    if not serving.stop(directory):
        click.echo(f"{directory} has no simulated driver running", err=True)


@sim.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("directory", metavar="DIR")
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(directory: str, command: tuple[str, ...]) -> int:
    """Run COMMAND while a simulated driver is behind the nodes of the machine in DIR; then take it away.

    All of it in a mount namespace of its own: other programs on this computer see nothing of it.

    \b
        sudo nvc-py sim run /tmp/machine -- nvc-py --sim /tmp/machine list
    """
    from nvc.sim import serving

    words = command[1:] if command[0] == "--" else command
    if not words:
        raise click.UsageError("a command is missing")
    return serving.run(directory, words)


@sim.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the whole description; a copy of it can be edited.")
def describe(name: str, as_json: bool) -> None:
    """Show what the machine NAME (or a .json file) consists of.

    \b
        nvc-py sim describe imex
        nvc-py sim describe h200 --json > mine.json
    """
    machine = load(name)
    if as_json:
        click.echo(json.dumps(machine.as_data(), indent=2))
        return
    click.echo("\n".join(_lines(machine)))


def _lines(machine: MachineDescription) -> list[str]:
    from nvc.sim.files import binaries, libraries
    from nvc.sim.nodes import nodes

    style, cuda = "none", machine.cuda_version
    if machine.capabilities:
        style = "device nodes" if machine.caps_in_dev else "files below /proc"
    lines = [
        f"SIMULATED machine {machine.name}: {machine.summary}",
        f"driver:     {machine.driver_version}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        f"libraries:  {len(libraries(machine, bits=64))} of 64 bits, "
        f"{len(libraries(machine, bits=32)) if machine.compat32 else 0} of 32 bits",
        f"programs:   {', '.join(binaries(machine))}",
        f"nvcaps:     {style}",
        f"nodes:      {', '.join(node.path for node, _ in nodes(machine))}",
    ]
    if machine.platform:
        lines[2:5] = [f"platform:   {machine.platform}"]
    lines += [f"damage:     {name}: {DAMAGES[damage]}" for name, damage in machine.damage.items()]
    lines += [f"left over:  {name} of driver {version}" for name, version in machine.versions.items()]
    lines += [f"fault:      {fault}" for fault in machine.faults]
    for index, gpu in enumerate(machine.gpus):
        node = gpu.bus_id if machine.platform else f"/dev/nvidia{gpu.minor}, {gpu.bus_id}"
        lines.append(f"GPU {index}:      {gpu.model}, {node}, {gpu.uuid}")
        lines += [
            f"  MIG {mig.profile}, GPU instance {mig.gi}, compute instance {mig.ci}, {mig.uuid}" for mig in gpu.mig
        ]
    return lines
