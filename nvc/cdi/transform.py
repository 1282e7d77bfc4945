"""Replaces a root in the paths of a spec: ``nvidia-ctk cdi transform root``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.cdi.spec import CdiDeviceNode, CdiEdits, CdiHook, CdiMount, CdiSpec

RELATIVE_TO = ("host", "container")
#: Stages whose hooks run in the container's namespaces (OCI runtime specification, "POSIX-platform Hooks"): the first
#: is started from a path of the host, the second from one of the container.
_INSIDE, _ALL_INSIDE = "createContainer", "startContainer"


def transform_root(spec: CdiSpec, old: str, new: str, relative_to: str) -> CdiSpec:
    """The spec with ``new`` in the place of the root ``old``, in the paths of the host or of the container."""
    if old == new:
        return spec
    change = _Change(old, new)
    edits = change.host if relative_to == "host" else change.container
    devices = tuple(device.replace(edits=edits(device.edits)) for device in spec.devices)
    changed = spec.replace(devices=devices, edits=edits(spec.edits))
    # A node may need a hostPath now, which older versions do not have.
    return changed.replace(version=max(spec.version, changed.minimum_version(), key=_number))


class _Change:
    def __init__(self, old: str, new: str) -> None:
        self.old = old
        self.new = new

    def host(self, edits: CdiEdits) -> CdiEdits:
        return _every(edits, self._host_node, self._host_hook, self._host_mount)

    def container(self, edits: CdiEdits) -> CdiEdits:
        return _every(edits, self._container_node, self._container_hook, self._container_mount)

    def _path(self, path: str) -> str:
        """The path below the new root, if it is below the old one: /a is not the root of /ab."""
        old = self.old.rstrip("/")
        if path == old or path.startswith(f"{old}/"):
            return _joined(self.new, path.removeprefix(old))
        return path

    def _host_node(self, node: CdiDeviceNode) -> CdiDeviceNode:
        moved = self._path(node.host_path or node.path)
        return node.replace(host_path="" if moved == node.path and not node.host_path else moved)

    def _host_mount(self, mount: CdiMount) -> CdiMount:
        return mount.replace(host_path=self._path(mount.host_path))

    def _host_hook(self, hook: CdiHook) -> CdiHook:
        if hook.hook_name == _ALL_INSIDE:
            return hook
        args = hook.args if hook.hook_name == _INSIDE else self._words(hook)
        return hook.replace(path=self._path(hook.path), args=args)

    def _container_node(self, node: CdiDeviceNode) -> CdiDeviceNode:
        moved = self._path(node.path)
        # What is left out on the host's side is the container's path.
        return node.replace(path=moved, host_path=node.host_path or (node.path if moved != node.path else ""))

    def _container_mount(self, mount: CdiMount) -> CdiMount:
        return mount.replace(container_path=self._path(mount.container_path))

    def _container_hook(self, hook: CdiHook) -> CdiHook:
        if hook.hook_name not in (_INSIDE, _ALL_INSIDE):
            return hook
        path = self._path(hook.path) if hook.hook_name == _ALL_INSIDE else hook.path
        return hook.replace(path=path, args=self._words(hook))

    def _words(self, hook: CdiHook) -> tuple[str, ...]:
        # create-symlinks has two paths in a word: TEXT::PATH.
        return tuple("::".join(self._path(part) for part in word.split("::", 1)) for word in hook.args)


def _every(
    edits: CdiEdits,
    node: Callable[[CdiDeviceNode], CdiDeviceNode],
    hook: Callable[[CdiHook], CdiHook],
    mount: Callable[[CdiMount], CdiMount],
) -> CdiEdits:
    return edits.replace(
        device_nodes=tuple(map(node, edits.device_nodes)),
        hooks=tuple(map(hook, edits.hooks)),
        mounts=tuple(map(mount, edits.mounts)),
    )


def _joined(root: str, rest: str) -> str:
    return f"{root.rstrip('/')}{rest}" or "/"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
