"""``nvc-py cdi``: make, list and check CDI specs (click commands; nothing on the start-up path imports this)."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from nvc.base.errors import InputError
from nvc.base.nearest import did_you_mean
from nvc.cdi import files, text
from nvc.cdi.gated import CLASSES
from nvc.cdi.generate import DEFAULT_CLASS, HOOKS, MODES, PLATFORMS, STRATEGIES, GenerateOptions
from nvc.cli import cdi_files
from nvc.cli.cdi_hook import HOOK_PROGRAM
from nvc.cli.groups import CHANGES
from nvc.cli.settings import Settings
from nvc.engines.files import Files
from nvc.model import DriverOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.cdi.gather import Surroundings
    from nvc.cdi.spec import CdiSpec
    from nvc.inject.api import Context
    from nvc.model import Inventory

_WHOLE_DRIVER = DriverOptions()
_DEFAULT_HOOK = f"/usr/local/bin/{HOOK_PROGRAM}"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cdi() -> None:
    """CDI specs: with one, engines give containers GPUs by name.

    A spec is a file that says what a container gets with a device. Podman, Docker, containerd and CRI-O read those in
    /etc/cdi and /var/run/cdi. Make one, then:

    \b
        nvc-py cdi generate --output /var/run/cdi/nvidia.yaml
        nvc-py cdi list
        podman run --device nvidia.com/gpu=0 IMAGE nvidia-smi
        docker run --device nvidia.com/gpu=all IMAGE nvidia-smi
    """


cdi.add_command(cdi_files.list_devices)
cdi.add_command(cdi_files.validate)


@cdi.command()
@click.option(
    "--output", "-o", default="-", metavar="FILE", help="Write to FILE in one step. Default: standard output."
)
@click.option("--check", is_flag=True, help="Write nothing; exit code 2: FILE of --output would change.")
@click.option(
    "--format",
    "form",
    type=click.Choice(text.FORMATS),
    help="How it is written. Default: by the ending of FILE, else yaml.",
)
@click.option(
    "--device-name-strategy",
    "strategies",
    multiple=True,
    type=click.Choice(STRATEGIES),
    help="Names of devices: 0 and 0:1, GPU-... and MIG-..., gpu0 and mig0:1. May be repeated. Default: index, uuid.",
)
@click.option("--vendor", default="nvidia.com", show_default=True, help="Before the slash of the devices' kind.")
@click.option("--class", "device_class", help="After the slash. Default: gpu, or by --mode.")
@click.option(
    "--capabilities",
    default="all",
    show_default=True,
    metavar="WORDS",
    help="Driver capabilities: which libraries, programs and nodes containers get. A comma list.",
)
@click.option("--mode", default="auto", show_default=True, help=f"One of {', '.join((*MODES, *CLASSES))}.")
@click.option(
    "--nvc-hook-path",
    "--cdi-hook-path",
    "hook_path",
    metavar="FILE",
    help=f"The program that the hooks start. Default: {HOOK_PROGRAM} beside this program.",
)
@click.option("--ldconfig-path", "ldconfig", default="", metavar="FILE", help="The ldconfig that the hooks start.")
@click.option(
    "--disable-hook",
    "disabled",
    multiple=True,
    type=click.Choice((*HOOKS, "all")),
    help="Leave a hook out. May be repeated.",
)
@click.option(
    "--share",
    is_flag=False,
    flag_value="",
    metavar="[=SPEC]",
    help="Containers may have a share of their GPUs: SPEC (mem=10Gi,cap=50%), else by annotation or variable.",
)
@click.option(
    "--share-fixed",
    default="",
    metavar="SPEC",
    help="Containers have this share, whatever their annotations and variables say.",
)
@click.option("--no-all-device", is_flag=True, help="Make no device `all`.")
@click.option(
    "--dev-root", default="", metavar="DIR", help="Where device nodes and /proc are. Default: the driver root."
)
@click.option(
    "--library-search-path",
    "libraries",
    multiple=True,
    metavar="DIR",
    help="Look for the driver's libraries here alone. May be repeated.",
)
@click.option(
    "--config-search-path",
    "configs",
    multiple=True,
    metavar="DIR",
    help="Look for files of Vulkan, EGL, OpenCL and X here alone. May be repeated.",
)
@click.option(
    "--no-additional-gids",
    is_flag=True,
    help="Name no groups of device nodes; engines older than CDI 0.7.0 then take the spec of every machine.",
)
@click.option(
    "--device-id",
    "devices",
    multiple=True,
    metavar="ID",
    help="Only these devices: index, GPU:MIG index, UUID or bus id. May be repeated. Default: all.",
)
@click.option("--csv-all", "every_list", is_flag=True, help="On a Tegra: every mount list, not only the base set.")
@click.pass_obj
def generate(
    settings: Settings | None,
    output: str,
    check: bool,
    form: str | None,
    strategies: tuple[str, ...],
    vendor: str,
    device_class: str | None,
    capabilities: str,
    mode: str,
    hook_path: str | None,
    ldconfig: str,
    disabled: tuple[str, ...],
    share: str | None,
    share_fixed: str,
    no_all_device: bool,
    no_additional_gids: bool,
    devices: tuple[str, ...],
    every_list: bool,
    dev_root: str,
    libraries: tuple[str, ...],
    configs: tuple[str, ...],
) -> int:
    """Make the spec of this machine's GPUs.

    Names are the GPU's index, its UUID, and `all`; a GPU that is divided by MIG appears as its MIG devices only. The
    spec needs no newer engine than it must: Podman 4.3 takes it, unless a device node is for a group only. It names
    driver files by version, so make it anew when the driver, the GPUs or their division change. It holds no device
    numbers: those may change with every boot.

    \b
        nvc-py cdi generate
        nvc-py cdi generate --output /var/run/cdi/nvidia.yaml
        nvc-py cdi generate --capabilities compute,utility --device-name-strategy uuid --format json
        nvc-py cdi generate --share --output /var/run/cdi/nvidia.yaml
        nvc-py cdi generate --mode management --output /var/run/cdi/management.yaml
        nvc-py --sim /tmp/machine cdi generate
    """
    from nvc.request.capabilities import DriverCapabilities

    if check and output == "-":
        raise InputError("--check compares with a file", hint="--output FILE names it")
    form = _form(output, form)
    settings = searched(settings or Settings(), dev_root, libraries, configs)
    _check_one_spec(share, share_fixed)
    options = GenerateOptions(
        capabilities=tuple(DriverCapabilities.parse(capabilities)),
        strategies=strategies or GenerateOptions().strategies,
        vendor=vendor,
        device_class=device_class or DEFAULT_CLASS,
        hook_path=_absolute("--nvc-hook-path", hook_path) if hook_path else find_hook(),
        ldconfig=_absolute("--ldconfig-path", ldconfig) if ldconfig else "",
        all_device=not no_all_device,
        disabled_hooks=disabled,
        share=_share(share),
        share_fixed=_share(share_fixed) or "",
        additional_gids=not no_additional_gids,
    )
    spec = make(settings, mode, options, devices, DriverOptions(csv_all=every_list))
    if check:
        return _would_change(output, text.write(spec, form))
    _deliver(spec, output, form)
    return 0


def make(
    settings: Settings | None,
    mode: str,
    options: GenerateOptions,
    devices: Sequence[str] = (),
    driver: DriverOptions = _WHOLE_DRIVER,
) -> CdiSpec:
    """The spec of this machine, whichever command was typed.

    devices: only these, all of them without any. driver: what of the driver is left out.

    Raises InputError for a mode that is not this machine's, DeviceError for a device that it does not have.
    """
    from nvc.cdi import gated
    from nvc.cdi.chosen import chosen
    from nvc.cdi.gather import gather
    from nvc.cdi.generate import generate

    _check_mode(mode)
    if mode in CLASSES or mode == "management":
        if any(device != "all" for device in devices):
            raise InputError(f"--device-id names GPUs, and mode {mode} has no device of one", hint="leave one out")
        if options.gives_shares:
            raise InputError(f"shares are of GPUs, and mode {mode} has no device of one", hint="leave one out")
    if mode in CLASSES:  # another driver's devices: no GPU is looked for
        device_class = CLASSES[mode] if options.device_class == DEFAULT_CLASS else options.device_class
        with _context(settings) as context:
            root, dev_root = context.host.root, context.host.nodes
        return gated.spec(mode, options.vendor, device_class, root, dev_root, all_device=options.all_device)
    management = mode == "management"
    vendor = "management.nvidia.com" if management and options.vendor == "nvidia.com" else options.vendor
    with _context(settings) as context:
        inventory = context.inventory(driver)
        _check_platform(mode, inventory.driver.platform)
        around = gather(context.host, inventory)
        options = options.replace(management=management, vendor=vendor)
        of_spec = chosen(inventory, devices)
        said = _fitting(of_spec, options)
        spec = generate(of_spec, around, context.host, options)
        simulated = context.host.simulated
    for line in [*said, *left_out(inventory, around)]:
        click.echo(f"warning: {line}", err=True)
    if simulated:
        click.echo(f"SIMULATED machine {simulated}: the spec is for containers on this computer only", err=True)
    return spec


def _fitting(inventory: Inventory, options: GenerateOptions) -> tuple[str, ...]:
    """Warnings about the share of the spec. Raises InputError where no container could start with it."""
    from nvc.cdi import fitting
    from nvc.request.injection import ShareRequest
    from nvc.share import policyfile
    from nvc.share.policy import Policy

    if not (options.share or options.share_fixed):
        return ()
    try:
        policy = policyfile.load()
    except InputError:  # which keeps containers from starting until it is right again: no reason to make no spec
        policy = Policy()
    fixed = (options.share_fixed,) if options.share_fixed else ()
    return fitting.warnings(policy, ShareRequest("", options.share or "", fixed=fixed), inventory)


def left_out(inventory: Inventory, around: Surroundings) -> list[str]:
    """What containers do not get by this spec though a daemon of the driver offers it, and why: one line each."""
    by_name = (
        f"{path} is left out: others than root can replace it before an engine mounts it; "
        "nvc-runtime and the hook give it, and so does a spec with a directory that is root's alone, below /run"
        for path, real in around.endpoints.items()
        if not real
    )
    return [*by_name, *(line for line in inventory.warnings if line.startswith("skipping ipc path"))]


def find_hook(program: str | None = None) -> str:
    """The hook program beside this one, or in PATH; else where it is installed by default, with a warning."""
    try:
        beside = os.path.join(os.path.dirname(os.path.realpath(program or sys.argv[0])), HOOK_PROGRAM)
    except FileNotFoundError:  # a relative name, and the working directory is gone
        beside = ""
    found = beside if os.access(beside, os.X_OK) else shutil.which(HOOK_PROGRAM)
    if found:
        return os.path.realpath(found)
    click.echo(f"warning: {HOOK_PROGRAM} is not installed: containers cannot start with this spec", err=True)
    return _DEFAULT_HOOK


def _context(settings: Settings | None) -> Context:
    from nvc.base.log import open_log
    from nvc.inject import api

    general = settings or Settings()
    return general.open(api, open_log(general.debug))


def _form(output: str, form: str | None) -> str:
    if not output:
        raise InputError("--output takes a file")
    by_name = files.form_of(output)
    if output != "-" and not by_name:
        ending = os.path.splitext(output)[1] or "none"
        raise InputError(f"{output}: engines read files ending in .yaml or .json, not {ending}")
    if form and by_name and form != by_name:
        raise InputError(f"{output}: --format {form} does not fit its ending")
    return form or by_name or "yaml"


def _check_one_spec(share: str | None, share_fixed: str) -> None:
    if share and share_fixed:
        raise InputError("--share and --share-fixed have a SPEC each", hint="fixed settings count alone: leave one out")


def _share(words: str | None) -> str | None:
    if words:
        from nvc.share.spec import parse

        parse(words)
    return words


def _check_mode(mode: str) -> None:
    if mode not in MODES and mode not in CLASSES:
        known = (*MODES, *CLASSES)
        hint = did_you_mean(mode, known, otherwise=f"--mode takes {', '.join(known)}")
        raise InputError(f"unknown mode {mode!r}", hint=hint)


def _check_platform(mode: str, platform: str) -> None:
    wanted = PLATFORMS.get(mode, platform)
    if wanted != platform:
        this = next(name for name, value in PLATFORMS.items() if value == platform)
        raise InputError(f"mode {mode} is not for this machine", hint=f"--mode {this} is, or auto")


def searched(
    settings: Settings, dev_root: str, libraries: Sequence[str], configs: Sequence[str], lists: Sequence[str] = ()
) -> Settings:
    """With where device nodes are ("" as usual), the only directories to look in and mount lists, all of this machine.

    Raises InputError for a relative path and one outside of the driver root.
    """
    return settings.replace(
        dev_root=_absolute("--dev-root", dev_root) if dev_root else "",
        libraries=tuple(_below(settings, "--library-search-path", path) for path in libraries),
        configs=tuple(_below(settings, "--config-search-path", path) for path in configs),
        lists=tuple(_below(settings, "--csv.file", path) for path in lists),
    )


def _below(settings: Settings, option: str, path: str) -> str:
    """A path of this machine as a driver path. Raises InputError for one outside of the driver root."""
    root = (settings.sim or settings.root).rstrip("/")
    path = _absolute(option, path).rstrip("/")
    if root and not f"{path}/".startswith(f"{root}/"):
        raise InputError(f"{option} {path} is not below the driver root {root}", hint="files are mounted from there")
    return path[len(root) :] or "/"


def _absolute(option: str, path: str) -> str:
    if not path.startswith("/"):
        raise InputError(
            f"{option} {path!r} is not an absolute path", hint="engines start hooks from other directories"
        )
    return path


def _would_change(output: str, content: str) -> int:
    """The exit code of --check."""
    before = Files().read(output)
    differs = before != content
    click.echo(f"{output}: {'would change' if before is not None else 'would be made'}" if differs
               else f"{output}: nothing to change")  # fmt: skip
    return CHANGES if differs else 0


def _deliver(spec: CdiSpec, output: str, form: str) -> None:
    content = text.write(spec, form)
    if output == "-":
        click.echo(content, nl=False)
        return
    files.save(output, content)
    names = ", ".join(f"{spec.kind}={device.name}" for device in spec.devices[:4])
    more = f" and {len(spec.devices) - 4} more" if len(spec.devices) > 4 else ""
    click.echo(f"{output}: CDI {spec.version}, {names}{more}", err=True)
