"""A session on one container: collects the plan, then has the container service carry it out."""

from __future__ import annotations

import time

from nvc.base.budgets import IMAGE_TIMEOUTS, LDCONFIG_TIMEOUTS, RESERVE_TIMEOUTS
from nvc.base.errors import ContainerError, MountError, NvcError
from nvc.container import plan
from nvc.container.compat import usable
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from nvc.container.operations import divide
from nvc.inject.planned import Planned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from nvc.container.messages import InspectReply
    from nvc.container.operations import Operation
    from nvc.container.service import Applying, ContainerClient
    from nvc.inject.api import Context
    from nvc.model import Container, DriverInfo, Selection
    from nvc.request.injection import ShareRequest
    from nvc.request.options import ContainerOptions
    from nvc.share.model import Resolved


class ContainerSession(Planned):
    """What one container shall get (nvc_container and the functions that take one).

    The ``mount_*`` methods and ``update_ldcache`` only add to ``plan``; ``apply`` carries all of it out, or nothing.
    Made by ``Context.container``. Leaving the ``with`` block closes it. client: of its container service. early: do not
    wait until the container has been looked up, so that a ContainerError comes from whatever needs it first, or from
    the end of the ``with`` block.
    """

    def __init__(
        self,
        context: Context,
        config: ContainerConfig,
        options: ContainerOptions,
        client: ContainerClient,
        *,
        early: bool = False,
    ) -> None:
        super().__init__(context, options)
        #: Seconds that the image may still hold the start for.
        self._left = context.config.timeout * IMAGE_TIMEOUTS
        self._client = client
        self._applying: Applying | None = None
        try:
            self._answer = self._client.begin_inspect(
                InspectRequest(
                    config=config,
                    supervised=options.supervised,
                    find_cgroup=not options.no_cgroups,
                    find_compat=options.compat_mode != "disabled" and "compute" in self._capabilities.libraries,
                )
            )
            self._found: InspectReply | None = None
            if not early:
                self._look()
        except BaseException:
            self._client.close()
            raise

    def _look(self) -> InspectReply:
        """What the container service found, once it has answered. Raises ContainerError."""
        if self._found is None:
            begin = time.monotonic()
            self._found = self._answer()
            self._left -= time.monotonic() - begin
        return self._found

    @property
    def container(self) -> Container:
        """The container as it was found. Raises ContainerError when it cannot be used."""
        return self._look().container

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            # A container that cannot be used is what failed first, also if something else was found out before.
            if self._found is None and isinstance(error, NvcError) and not isinstance(error, ContainerError):
                self._look()
        finally:
            self.close()

    def close(self) -> None:
        """End the helper (nvc_container_free). What was applied stays. Harmless when done twice."""
        try:
            self._abandon()
        finally:
            self._client.close()

    def _abandon(self) -> None:
        applying, self._applying = self._applying, None
        if applying is not None:
            applying.abandon(deadline=self._left)

    def share(self, request: ShareRequest, selection: Selection) -> Resolved:
        """Plan a share of the selected GPUs, if it comes to one; what it is. Call it before ``mount_driver``: a
        container with a share gets fewer device nodes.

        Raises InputError for a share spec that is malformed or above the node's maximum, MountError where the libraries
        of shares are not installed, and where something was planned before.
        """
        from nvc.inject import share

        context = self._context
        driver = context.current_inventory().driver
        resolved, operations = share.plan(request, selection, context.host, driver, self.container, context.log)
        if operations and self._operations:
            raise MountError("invalid argument: a share is planned before the driver and its devices")
        self._shared = bool(operations)
        if self._shared and "graphics" in self._capabilities.libraries:
            context.log.warn(
                "share: no DRM node and no nvidia-modeset for this container: no share counts the memory that the "
                "kernel allocates through them; Vulkan and EGL without a display need neither"
            )
        self._operations += operations
        return resolved

    def update_ldcache(self) -> None:
        """Plan the update of the loader cache (nvc_ldcache_update)."""
        found = self._look().compat
        driver = self._driver
        if found is not None:
            driver = driver or self._context.current_inventory().driver
            version = driver.nvrm_version
            state = "using" if self._compat(driver) else "not using"
            self._context.log.info(f"{state} compat libcuda {found.version} of {found.directory} with driver {version}")
        self._operations += self._ldcache_update(driver)

    def _compat(self, driver: DriverInfo | None) -> str:
        """The directory of the image's compat libraries, "" where they are not to be used."""
        found = self._look().compat
        # They speak to NVIDIA's kernel module, which neither WSL nor Tegra has.
        if found is None or driver is None or driver.platform or not usable(found, driver.nvrm_version):
            return ""
        return found.directory

    def _ldcache_update(self, driver: DriverInfo | None) -> tuple[Operation, ...]:
        return plan.ldcache_update(
            self.container,
            compat=self._compat(driver),
            more=plan.component_directories(driver) if driver is not None else (),
            no_pivot=self._context.config.no_pivot,
            limit=self._ldconfig_limit,
        )

    @property
    def _ldconfig_limit(self) -> float:
        # An image decides what ldconfig reads, and a start waits for it; undo comes out of the rest.
        timeout = self._context.config.timeout
        return max(0.0, min(timeout * LDCONFIG_TIMEOUTS, self._left - timeout * RESERVE_TIMEOUTS))

    def begin_apply(self, driver: DriverInfo) -> None:
        """Begin with the files of ``driver``, of which NVML has not been asked yet: none of a GPU's is among them.

        ``apply`` goes on if that is how the plan begins; otherwise, and on ``close``, all of it is undone first. Raises
        ContainerError, MountError.
        """
        # The profile of graphics, which names the GPUs, comes first.
        if "graphics" in self._capabilities.libraries:
            return
        files = plan.driver_files(self._scope, driver)
        first, _ = divide(plan.merge((*files, *self._ldcache_update(driver))))
        try:
            self._applying = self._client.begin_apply(ApplyRequest(self._context.host.root, first), deadline=self._left)
        except OSError:
            return  # no descriptor is left: it is applied when the plan is known
        self._planned_ahead = driver, files, self._proc_files(driver)

    def apply(self, *, last: bool = False) -> None:
        """Carry the plan out. last: nothing else follows. Raises MountError or LdcacheError after everything was taken
        back.
        """
        operations = self.plan
        log = self._context.log
        if log.enabled:
            for operation in operations:
                log.info(operation.describe())
        first, rest = divide(operations)
        if self._applying is not None and self._applying.operations == first:
            applying, self._applying = self._applying, None
            done = applying.finish(rest, deadline=self._left, last=last)
        else:
            self._abandon()
            request = ApplyRequest(self._context.host.root, operations)
            done = self._client.apply(request, deadline=self._left, last=last)
        log.info(f"{done} of {len(operations)} operations changed the container")
