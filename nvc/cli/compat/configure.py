"""``configure``: give a created, not yet started container its GPUs."""

from __future__ import annotations

import posixpath

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.cli.compat import devices
from nvc.cli.compat.devices import DeviceRequest
from nvc.inject.planner import plan
from nvc.request.injection import InjectionRequest, ShareRequest
from nvc.request.options import TEXT_LIMIT, ContainerOptions, LibraryOptions, container_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.cli.compat.getopt import Parsed
    from nvc.cli.settings import Library, Settings

#: As many requirements as the reference takes.
REQUIREMENTS_LIMIT = 32
#: pid_t. The kernel has none above 4,194,304; of those the message is that of a process that has ended.
_PID_LIMIT = 1 << 31


class ConfigureRequest(Record):
    """What to do.

    pid: a process of a supervised container; None: standalone, the caller is in the container's mount namespace.
    dry_run: "", "text" or "json". share: a share spec, "" for none; share_fixed: specs that are final.
    """

    rootfs: str
    devices: DeviceRequest
    container: ContainerOptions
    pid: int | None = None
    requirements: tuple[str, ...] = ()
    ldconfig: str = ""
    dry_run: str = ""
    share: str = ""
    share_fixed: tuple[str, ...] = ()


def read(parsed: Parsed) -> ConfigureRequest:
    """Raises InputError, ImexError, and ContainerError for compat modes that cannot be."""
    pid = _pid(parsed.last("pid"))
    requirements = tuple(parsed.all("require"))
    if len(requirements) > REQUIREMENTS_LIMIT:
        raise InputError("too many requirements", hint=f"--require may be given {REQUIREMENTS_LIMIT} times")
    chosen = devices.read(parsed)
    names = [*parsed.names("container_options"), "standalone" if pid is None else "supervised"]
    if len(" ".join(names)) >= TEXT_LIMIT:
        raise InputError("too many options", hint="options may be given once")
    return ConfigureRequest(
        rootfs=_rootfs(parsed.operands[0]),
        devices=chosen,
        container=container_options(names),
        pid=pid,
        requirements=requirements,
        ldconfig=_ldconfig(parsed.last("ldconfig")),
        dry_run=_dry_run(parsed),
        share=_share(parsed.last("share"), "--share"),
        share_fixed=tuple(_share(text, "--share-fixed") for text in parsed.all("share-fixed")),
    )


def _pid(text: str | None) -> int | None:
    """A process id; None when it is absent or not positive, which the reference takes for "standalone"."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    significant = digits.lstrip("0") or "0"
    hint = f"--pid={text[:40]}: write the number of a process of the container"
    if not digits or not frozenset("0123456789").issuperset(digits):
        raise InputError("parse pid failed: invalid argument", hint=hint)
    if len(significant) > 10 or int(significant) >= _PID_LIMIT:
        raise InputError("parse pid failed: numerical result out of range", hint=hint)
    pid = 0 if text.startswith("-") else int(significant)
    return pid if pid > 0 else None


def _rootfs(text: str) -> str:
    # normpath keeps two leading slashes apart from one, as POSIX allows; to Linux they are the same.
    clean = "/" + posixpath.normpath(text).lstrip("/")
    if not text.startswith("/") or clean == "/" or "\0" in text:
        raise InputError("invalid rootfs directory", hint=f"'{text}': give an absolute path other than /")
    return text


def _ldconfig(text: str | None) -> str:
    if text in ("", "@"):
        raise InputError(f"invalid ldconfig: '{text}'", hint="--ldconfig takes a path, @ before it means the host's")
    return text or ""


def _share(text: str | None, option: str) -> str:
    if text == "":
        raise InputError("invalid share: ''", hint=f"{option} takes settings such as mem=10Gi,cap=50%, or off")
    return text or ""


def _dry_run(parsed: Parsed) -> str:
    if not parsed.has("dry_run"):
        return ""
    form = parsed.last("dry_run") or "text"
    if form not in ("text", "json"):
        raise InputError(f"invalid dry-run format: {form}", hint="--dry-run=text or --dry-run=json")
    return form


def run(request: ConfigureRequest, settings: Settings, library: Library, log: Log) -> int:
    """Do it, or with ``dry_run`` print it; the exit code."""
    if request.dry_run:
        # A dry run changes nothing: no modules, no nodes.
        settings = settings.replace(library=LibraryOptions())
    else:
        library.require_rights()
    with settings.open(library, log, request.devices.imex) as context:
        container = library.ContainerConfig(pid=request.pid, rootfs=request.rootfs, ldconfig=request.ldconfig)
        with context.container(container, request.container, early=True) as session:
            plan(_injection(request), context, session, applies=not request.dry_run)
            if request.dry_run:
                from nvc.cli.compat import dryrun

                dryrun.show(request, settings, session.plan)
            else:
                session.apply(last=True)
    return 0


def _injection(request: ConfigureRequest) -> InjectionRequest:
    chosen = request.devices
    return InjectionRequest(
        chosen.devices or (),
        chosen.mig_config,
        chosen.mig_monitor,
        chosen.imex,
        request.requirements,
        chosen.driver,
        ShareRequest(option=request.share, fixed=request.share_fixed),
    )
