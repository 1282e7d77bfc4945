"""Names that the cluster, the kubelet and this node agree on, each written once."""

from __future__ import annotations

from nvc.request.capabilities import WORDS

#: The driver's name in device classes, claims, slices and the kubelet's directories.
DRIVER = "gpu.nvc.dev"
#: CDI kind of the devices that claims name, and of what all of them have in common: VENDOR/CLASS.
VENDOR = "nvc.dev"
CLAIM_KIND = f"{VENDOR}/claim"
DRIVER_KIND = f"{VENDOR}/driver"
#: The one device of DRIVER_KIND: the driver's files.
DRIVER_DEVICE = "all"
#: Driver capabilities of pods. No 32-bit libraries, as in specs of NVIDIA's: each is a mount, for which every start
#: waits.
CAPABILITIES = tuple(word for word in WORDS if word != "compat32")
#: Objects that the chart makes.
CLASS_ANY, CLASS_GUARDED = "nvc-gpu", "nvc-gpu-guarded"
RUNTIME_CLASS = "nvc"
NAMESPACE = "nvc-system"
#: Opaque parameters of claims and classes.
PARAMETERS_VERSION, PARAMETERS_KIND = "nvc.dev/v1", "Share"
#: Where claims' CDI files are: kept over a reboot, because the kubelet may not ask again after one.
CDI_DIRECTORY = "/var/lib/nvc/cdi"
#: The kubelet's directory, and what plugins have in it.
KUBELET_DIRECTORY = "/var/lib/kubelet"
REGISTRY, PLUGINS, DEVICE_PLUGINS = "plugins_registry", "plugins", "device-plugins"
#: API of slices and claims. v1 is served from Kubernetes 1.34 on, before which DRA is off by default.
RESOURCE_GROUP, RESOURCE_VERSION = "resource.k8s.io", "v1"
#: Capacities of a device.
MEMORY, COMPUTE = "memory", "compute"
#: compute of a whole GPU, in percent.
COMPUTE_WHOLE = 100
#: The least memory of a share, and the step of amounts.
MEMORY_LEAST, MEMORY_STEP = 64 << 20, 1 << 20
