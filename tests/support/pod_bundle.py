"""A pod's container without a kubelet: the bundle that containerd makes of it, and the CDI file of its claim.

recorded/pod.json is the config.json that containerd 2.3 wrote for a pod of Kubernetes 1.36 on the bed of `make
test-kubernetes`. The claim's file is the driver's; its edits are applied as an engine does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hook.runtime import edits
from nvc.cdi import files
from nvc.cdi.generate import GenerateOptions
from nvc.cdi.spec import CdiEdits, CdiMount
from nvc.inject.api import Config, Context
from nvc.kube import claims, prepare
from nvc.kube.devices import devices
from nvc.kube.edits import template
from nvc.kube.records import Records
from nvc.share.policy import Policy

RECORDED = Path(__file__).with_name("recorded") / "pod.json"
POOL, UID = "node-a", "5b0ddbc6-5a1e-4b4a-9b9a-0a2f4e6c8d10"
#: Where the recorded bundle's files of kubelet and containerd were.
_OF_SANDBOX = ("/var/lib/kubelet/", "/var/lib/containerd/", "/run/containerd/")


def prepared(directory: Path, simulated: str, hook: str, memory: str, compute: int) -> tuple[str, ...]:
    """Prepare a claim for a share of the first GPU; the CDI devices that the kubelet tells the engine.

    directory: of CDI files. simulated: a machine's directory, "" for this one. hook: the program.
    """
    row = {
        "driver": "gpu.nvc.dev",
        "pool": POOL,
        "request": "gpu",
        "device": "gpu-0",
        "consumedCapacity": {"memory": memory, "compute": str(compute)},
    }
    data = {
        "metadata": {"uid": UID, "namespace": "default", "name": "claim"},
        "status": {"allocation": {"devices": {"results": [row]}}},
    }
    with Context(Config(sim=simulated, cache=False)) as context:
        inventory, host = context.inventory(), context.host
    made = template(inventory, host, GenerateOptions(hook_path=hook))
    machine = prepare.Machine(devices(inventory), {gpu.uuid: gpu for gpu in inventory.gpus}, made)
    records = Records(str(directory))
    prepare.rewrite(records, machine, lambda _: None)
    found = prepare.prepare(claims.decode(data, UID, POOL), machine, records, Policy())
    return tuple(name for one in found for name in one.cdi)


def write(
    bundle: Path, rootfs: Path, args: Sequence[str], directory: Path, names: Sequence[str], options: Sequence[str] = ()
) -> None:
    """Write the pod's bundle with these CDI devices of ``directory``. options: more of the share hook."""
    config: dict[str, Any] = json.loads(RECORDED.read_text())
    config["root"] = {"path": str(rootfs)}
    config["process"]["args"] = list(args)
    config["mounts"] = [one for one in config["mounts"] if not one["source"].startswith(_OF_SANDBOX)]
    config["linux"]["namespaces"] = [{"type": one["type"]} for one in config["linux"]["namespaces"]]
    del config["linux"]["cgroupsPath"]
    # 2 shares of the processor, in which hooks run too: nothing beside tests that load the machine.
    del config["linux"]["resources"]["cpu"]
    edits.apply(config, [_served(one) for one in _edits(directory, names)], str(bundle), lambda _: None)
    for hook in config["hooks"]["createContainer"]:
        if "share" in hook["args"]:
            hook["args"] += options
    (bundle / "config.json").write_text(json.dumps(config))


def _edits(directory: Path, names: Sequence[str]) -> list[CdiEdits]:
    """Those of a file once, then those of each device."""
    found: list[CdiEdits] = []
    for file in files.find([str(directory)]):
        assert file.spec is not None, file.problems
        own = [one.edits for one in file.spec.devices if f"{file.spec.kind}={one.name}" in names]
        found += [file.spec.edits, *own] if own else []
    return found


def _served(one: CdiEdits) -> CdiEdits:
    """Nodes that a simulated machine serves are files, which an engine takes for no device: they are mounted."""
    served = [node for node in one.device_nodes if Path(node.host_path or node.path).is_file()]
    nodes = tuple(node for node in one.device_nodes if node not in served)
    mounts = tuple(CdiMount(node.host_path, node.path, ("bind", "rw")) for node in served)
    return one.replace(device_nodes=nodes, mounts=(*one.mounts, *mounts))
