"""From a container that wants a GPU to one that has it: the same steps as ``nvc-py configure``, in this process.

Imported only when a GPU is wanted.
"""

from __future__ import annotations

import os

from hook import report
from hook.config import HookConfig, load
from hook.environment import chosen
from hook.request import HookRequest, build, complete
from hook.swarm import DEVICES, MODE, own
from nvc.base.errors import NvcError
from nvc.base.log import open_log
from nvc.inject.planner import plan
from nvc.linux import rights
from nvc.model import DriverOptions
from nvc.request.injection import InjectionRequest, ShareRequest
from nvc.request.options import ContainerOptions, LibraryOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.target import Target
    from nvc.base.log import Log
    from nvc.inject.api import Config, Context

    MakeContext = Callable[..., Context]

LDCONFIG, LDCONFIG_REAL = "/sbin/ldconfig", "/sbin/ldconfig.real"


def give(target: Target, make_context: MakeContext | None = None) -> None:
    """Give ``target`` what it asks for, or raise NvcError and leave it as it was.

    make_context: stands in for ``nvc.inject.api.Context`` in tests.
    """
    log = open_log(target.debug, target.program)
    try:
        config = load(target.config, os.environ)
        if not log.enabled:
            log = open_log(config.debug, target.program)
        if config.unknown:
            log.warn(f"config.toml: unknown keys are ignored: {', '.join(config.unknown)}")
        request = _request(target, config, log)
        if request is None:
            log.info("hook: no devices are asked for")
            return
        if rights.in_user_namespace() and not config.no_cgroups:
            # The kernel refuses changes of a device cgroup from there (devcgroup_update_access(), bpf(2)); rootless
            # containers have none, and ``nvc.driver.reach`` tells when one is in the way.
            log.warn("in a user namespace: the device cgroup is left alone")
            config = config.replace(no_cgroups=True)
        if target.sim:
            # Not on stderr: runtimes show that only beside a failure, where it would hide the reason.
            log.warn(f"simulated machine: {target.sim}")
        log.info(f"hook: pid {target.pid}, rootfs {target.rootfs}, {request!r}")
        _configure(target, config, request, log, make_context or _context)
        log.info("hook: done")
    except Exception as error:
        report.to_log(log, error if isinstance(error, NvcError) else report.internal(error))
        raise
    finally:
        log.close()


def _request(target: Target, config: HookConfig, log: Log) -> HookRequest | None:
    """What to give: what the container asks for, or what nvc-runtime wrote into the hook's entry for it."""
    devices = os.environ.get(DEVICES, "")
    if devices:
        return complete(
            chosen(devices) or (),
            target.env,
            privileged=target.privileged,
            config=config,
            device_mounts=target.device_mounts,
        )
    if os.environ.get(MODE) == "legacy":
        config = config.replace(skip_mode_detection=True)
    return build(
        target.env,
        privileged=target.privileged,
        config=config,
        device_mounts=target.device_mounts,
        warn=log.warn,
    )


def _context(config: Config, options: LibraryOptions, log: Log) -> Context:
    from nvc.inject.api import Context

    return Context(config, options, log)


def _configure(target: Target, config: HookConfig, request: HookRequest, log: Log, make_context: MakeContext) -> None:
    from nvc.inject.api import Config, ContainerConfig

    uid, gid = config.ids()
    settings = Config(
        root=config.root,
        ldcache=config.ldcache or Config().ldcache,
        uid=uid,
        gid=gid,
        imex=request.imex,
        sim=target.sim,
        timeout=target.timeout,
        no_pivot=config.no_pivot,
        inside=target.pid is None,
        csv=config.csv_directory or Config().csv,
        mps_user=config.mps_uid(),
    )
    container = ContainerConfig(pid=target.pid, rootfs=target.rootfs, ldconfig=ldconfig(config.ldconfig))
    asked = injection_request(request, _share_request(target))
    with make_context(settings, library_options(config, simulated=bool(target.sim)), log) as context:
        options = container_options(request, config, supervised=target.pid is not None)
        with context.container(container, options, early=True) as session:
            plan(asked, context, session, applies=True)
            session.apply(last=True)


def _share_request(target: Target) -> ShareRequest:
    # The rules of the node are in the same file as the hook's own settings, where that file is nvc-py's.
    return ShareRequest(
        target.share,
        "",
        target.env,
        target.config or own("", os.environ),
        target.identifier,
        target.bundle,
        target.seccomp,
        target.guard_off,
        target.fixed,
        target.name,
    )


def injection_request(request: HookRequest, share: ShareRequest) -> InjectionRequest:
    """What the planner plans for a hook's request."""
    return InjectionRequest(
        request.devices,
        request.mig_config or None,
        request.mig_monitor or None,
        request.imex,
        request.requirements,
        DriverOptions(csv_all=request.all_csv),
        share,
    )


def container_options(request: HookRequest, config: HookConfig, *, supervised: bool) -> ContainerOptions:
    """The options of ``nvc_container_new``."""
    return ContainerOptions(
        supervised=supervised,
        no_cgroups=config.no_cgroups,
        capabilities=request.capabilities,
        compat_mode=config.compat_mode,
    )


def library_options(config: HookConfig, *, simulated: bool) -> LibraryOptions:
    """The options of ``nvc_init``. A simulated machine has no kernel modules to load."""
    if simulated or not config.load_kmods:
        return LibraryOptions()
    return LibraryOptions(load_kmods=True, no_create_imex_channels=not config.create_imex)


def ldconfig(configured: str, real_path: str = LDCONFIG_REAL) -> str:
    """Ubuntu's /sbin/ldconfig is a script around ldconfig.real; whichever of the two exists is meant by either."""
    real = os.path.exists(real_path)
    if configured == f"@{LDCONFIG}" and real:
        return f"@{LDCONFIG_REAL}"
    if configured == f"@{LDCONFIG_REAL}" and not real:
        return f"@{LDCONFIG}"
    return configured
