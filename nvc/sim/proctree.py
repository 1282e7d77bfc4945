"""The /proc, /sys and /etc texts of a simulated machine, true to the listing of a real one (pure: path -> text)."""

from __future__ import annotations

from nvc.sim import caps
from nvc.sim.description import GpuDescription, MachineDescription

#: /proc/driver/nvidia/params of driver 580, in the kernel module's order (nv-procfs.c prints its registry table).
_PARAMS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 1
RmProfilingAdminOnly: 0
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
GrdmaPciTopoCheckOverride: 0
CoherentGPUMemoryMode: ""
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
"""
_POWER = """\
Runtime D3 status:          Disabled by default
Video Memory:               Active

GPU Hardware Support:
 Video Memory Self Refresh: Not Supported
 Video Memory Off:          Not Supported

S0ix Power Management:
 Platform Support:          Not Supported
 Status:                    Disabled
"""
_NVIDIA = "/proc/driver/nvidia"


def device_names(machine: MachineDescription) -> str:
    """Text of /proc/devices: the kernel's usual devices and the driver's."""
    usual = {"mem": 1, "/dev/vc/0": 4, "tty": 5, "misc": 10, "pts": 136}
    rows = sorted([(major, name) for name, major in {**usual, **machine.majors}.items()])
    character = "".join(f"{major:3d} {name}\n" for major, name in rows)
    return f"Character devices:\n{character}\nBlock devices:\n  8 sd\n259 blkext\n"


def _attributes(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _gpu_files(machine: MachineDescription, gpu: GpuDescription, index: int) -> dict[str, str]:
    model = machine.gpu_models[gpu.model]
    directory = f"{_NVIDIA}/gpus/{gpu.bus_id}"
    information = (
        f"Model: \t\t {gpu.model}\n"
        f"IRQ:   \t\t {41 + index}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        f"Video BIOS: \t {model.video_bios}\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 52 bits\n"
        "DMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {gpu.bus_id}\n"
        f"Device Minor: \t {gpu.minor}\n"
        f"GPU Firmware: \t {machine.driver_version if machine.firmware else 'N/A'}\n"
        "GPU Excluded:\t No\n"
    )
    pci = f"/sys/bus/pci/devices/{gpu.bus_id}"
    return {
        f"{directory}/information": information,
        f"{directory}/registry": 'Binary: ""\n',
        f"{directory}/power": _POWER,
        f"{pci}/vendor": f"0x{model.pci_id & 0xFFFF:04x}\n",
        f"{pci}/device": f"0x{model.pci_id >> 16:04x}\n",
        f"{pci}/class": "0x030200\n",
        f"{pci}/numa_node": "-1\n",
    }


def _caps_files(machine: MachineDescription) -> dict[str, str]:
    if not machine.capabilities:
        return {}
    files = {cap.path: _attributes(cap.minor, cap.mode) for cap in caps.present(machine)}
    files["/proc/driver/nvidia-caps/mig-minors"] = caps.mig_minors()
    files["/proc/driver/nvidia-caps/nvlink-minors"] = "fabric-mgmt 0\n"
    if "nvidia-caps-imex-channels" in machine.majors:
        imex = caps.FABRIC_IMEX
        files[imex.path] = _attributes(imex.minor, imex.mode)
        files["/proc/driver/nvidia-caps/sys-minors"] = f"{imex.name} {imex.minor}\n"
    return files


def directories(machine: MachineDescription) -> tuple[str, ...]:
    """Directories that may have no file in them."""
    if machine.platform:
        return ("/tmp", "/dev", "/run")
    found = ["/proc/driver/nvidia/gpus", "/tmp", "/dev", "/run"]
    if machine.capabilities:
        found += [f"{_NVIDIA}/capabilities/gpu{gpu.minor}/mig" for gpu in machine.gpus]
    modules = ["nvidia", "nvidia_uvm"] + (["nvidia_modeset"] if machine.modeset else [])
    return (*found, *(f"/sys/module/{name}/parameters" for name in modules))


def texts(machine: MachineDescription) -> dict[str, str]:
    """Every text file of /proc, /sys and /etc but the loader's configuration."""
    nvrm = machine.nvrm.replace("{driver}", machine.driver_version)
    files = {
        "/etc/nvc-sim/simulated": f"This is a SIMULATED machine: {machine.name} ({machine.summary}).\n"
        "Made by `nvc-py sim create`. Its libraries are empty or stand-ins and nothing in it drives a GPU.\n",
        "/proc/devices": device_names(machine),
    }
    if machine.platform:
        return files
    files |= {
        "/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
        "/proc/sys/kernel/overflowuid": "65534\n",
        "/proc/sys/kernel/overflowgid": "65534\n",
        "/sys/module/nvidia/version": f"{machine.driver_version}\n",
        f"{_NVIDIA}/version": f"NVRM version: {nvrm}\nGCC version:  {machine.gcc}\n",
        f"{_NVIDIA}/params": _PARAMS,
        f"{_NVIDIA}/registry": 'Binary: ""\n',
        **_caps_files(machine),
    }
    for index, gpu in enumerate(machine.gpus):
        files.update(_gpu_files(machine, gpu, index))
    return files
