"""The Python API end to end on simulated machines, with the container service as a real process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nvc.inject.api
from nvc.base.budgets import LDCONFIG_TIMEOUTS
from nvc.base.errors import (
    ContainerError,
    DetectionError,
    DeviceError,
    InitializationError,
    LdcacheError,
    MountError,
    RequirementError,
)
from nvc.container.operations import AllowDevices, BindMount, UpdateLdcache
from nvc.inject.api import Config, ContainerConfig, ContainerOptions, ContainerSession, Context
from nvc.inject.planned import Planned
from nvc.model import NVCAPS_DEV, NVCAPS_PROC
from nvc.sim.create import create
from tests.support import injection
from tests.support.injection import container, isolated, mountinfo, tree
from tests.support.native import build

root = pytest.mark.root
ROOT = Path(__file__).parents[3]
SUPERVISED = ContainerOptions(supervised=True, no_cgroups=True)
STANDALONE = ContainerOptions(no_cgroups=True)
COMPUTE = STANDALONE.replace(capabilities=("compute",))
OPTIONS = SUPERVISED.replace(capabilities=("compute", "utility", "graphics"))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build()
    directory = tmp_path_factory.mktemp("machines")
    for name in ("h200", "a100-mig-dev", "a100-mig-proc", "imex", "v100-legacy"):
        create(str(directory / name), name)
    return directory


def configure(
    machine: Path, pid: int | None, rootfs: Path, options: ContainerOptions = OPTIONS, device: str = "all"
) -> int:
    """What the command line does; the number of operations."""
    with Context(Config(sim=str(machine))) as context:
        selection = context.select([device])
        with context.container(ContainerConfig(pid, str(rootfs)), options) as session:
            session.mount_driver(context.driver_info())
            for gpu in selection.gpus:
                session.mount_device(gpu)
            for found in selection.migs:
                session.mount_mig_access(found.mig, found.gpu)
            session.update_ldcache()
            session.apply()
            return len(session.plan)


@root
@isolated
def test_a_container_gets_its_gpu(machines: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        configure(machines / "h200", pid, rootfs)
        inside = injection.inside(pid, rootfs, "/")

        assert os.major((inside / "dev/nvidia0").stat().st_rdev) == 195
        assert "ModifyDeviceFiles: 0" in (inside / "proc/driver/nvidia/params").read_text()
        assert "ModifyDeviceFiles: 1" in (machines / "h200/proc/driver/nvidia/params").read_text()
        cache = subprocess.run(
            ["/sbin/ldconfig", "-p", "-C", str(rootfs / "etc/ld.so.cache")], capture_output=True, text=True, check=True
        ).stdout
        assert "libcuda.so.1 " in cache
        assert "libnvidia-ml.so.1 " in cache


@root
@isolated
def test_mig_devices_get_their_nvcaps(machines: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        configure(machines / "a100-mig-dev", pid, rootfs, device="1:0")
        caps = sorted(injection.inside(pid, rootfs, "/dev/nvidia-caps").iterdir())

        assert len(caps) == 2
        tree_below = injection.inside(pid, rootfs, "/proc/driver/nvidia/capabilities")
        assert len(list(tree_below.rglob("access"))) == 2


@root
@isolated
def test_a_failure_crosses_with_its_words_and_leaves_nothing(machines: Path, rootfs: Path) -> None:
    (rootfs / "usr/bin/nvidia-smi").mkdir()
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        with pytest.raises(MountError) as caught:
            configure(machines / "h200", pid, rootfs)

        assert str(caught.value) == f"mount error: file creation failed: {rootfs}/usr/bin/nvidia-smi: is a directory"
        assert caught.value.hint == "the image has a directory where a file goes"
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@root
@isolated
def test_a_failed_ldconfig_is_an_ldcache_error(machines: Path, rootfs: Path) -> None:
    (rootfs / "etc/ld.so.cache").mkdir()
    (rootfs / "etc/ld.so.cache/full").touch()
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        with pytest.raises(LdcacheError) as caught:
            configure(machines / "h200", pid, rootfs)

        assert str(caught.value).startswith(f"ldcache error: {rootfs}/etc/ld.so.cache cannot be replaced: ")
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@root
@isolated
def test_nothing_happens_before_apply(machines: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        with (
            Context(Config(sim=str(machines / "h200"))) as context,
            context.container(ContainerConfig(pid, str(rootfs)), OPTIONS) as session,
        ):
            session.mount_driver(context.driver_info())
            session.mount_device(context.device_info()[0])
            session.update_ldcache()
            assert len(session.plan) > 10

        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@root
@isolated
def test_applying_again_with_more_adds_it(machines: Path, rootfs: Path) -> None:
    with (
        container(rootfs) as pid,
        Context(Config(sim=str(machines / "a100-mig-dev"))) as context,
        context.container(ContainerConfig(pid, str(rootfs)), SUPERVISED) as session,
    ):
        session.mount_driver(context.driver_info())
        session.mount_device(context.device_info()[0])
        session.apply()
        first = set(injection.inside(pid, rootfs, "/proc/driver/nvidia/gpus").iterdir())
        session.mount_device(context.device_info()[1])
        session.apply()

        assert len(first) == 1
        assert len(set(injection.inside(pid, rootfs, "/proc/driver/nvidia/gpus").iterdir())) == 2


SLOW_CONFIGURE = Path(__file__).parent / "programs/configure_slowly.py"


@root
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_a_caller_that_dies_in_the_middle_leaves_the_container_as_it_was(
    machines: Path, rootfs: Path, tmp_path: Path, how: int
) -> None:
    source = tmp_path / "hang.c"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["gcc", "-static", "-o", str(tmp_path / "hang"), str(source)], check=True)

    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            mounts, files = mountinfo(pid), tree(rootfs)
            words = map(str, (machines / "h200", pid, rootfs, tmp_path / "hang"))
            with subprocess.Popen(
                [sys.executable, SLOW_CONFIGURE, *words], stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "go\n"
                _until(lambda: len(mountinfo(pid)) > len(mounts) + 3)
                process.send_signal(how)
            _until(lambda: mountinfo(pid) == mounts)
            _until(lambda: tree(rootfs) == files)
            _until(lambda: not _alive(str(tmp_path / "hang")))

    run()


def _until(condition: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "still not so after 30 s"
        time.sleep(0.01)


def _alive(program: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[0] == program.encode():
                return True
        except OSError:
            continue
    return False


@root
@isolated
def test_a_hanging_ldconfig_ends_with_the_timeout(machines: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts = mountinfo(pid)
        # A fifo among the files that the configuration includes: opening it for reading waits for a writer for ever.
        os.mkfifo(rootfs / "etc/ld.so.conf.d/x.conf")
        start = time.monotonic()
        with (
            pytest.raises(LdcacheError) as caught,
            Context(Config(sim=str(machines / "h200"), timeout=1.5)) as context,
            context.container(ContainerConfig(pid, str(rootfs)), SUPERVISED) as session,
        ):
            session.update_ldcache()
            session.apply()

        # On a slow machine the session's steps before it have left it less.
        said = re.search(r"did not end within ([\d.]+) s", caught.value.message)
        assert said is not None
        assert 0 < float(said[1]) <= 1.5 * LDCONFIG_TIMEOUTS
        assert time.monotonic() - start < 60
        assert mountinfo(pid) == mounts


def test_context_answers_about_the_host(machines: Path) -> None:
    with Context(Config(sim=str(machines / "a100-mig-dev"))) as context:
        assert context.driver_info().nvrm_version == "535.104.05"
        assert len(context.device_info()) == 3
        assert context.nvcaps_style() == NVCAPS_DEV
        node = context.nvcaps_device_from_proc_path("/proc/driver/nvidia/capabilities/mig/config")
        assert (node.path, node.minor) == ("/dev/nvidia-caps/nvidia-cap1", 1)
        context.require(["cuda>=12.0", "arch>=8.0"], context.select(["0"]))
        with pytest.raises(RequirementError):
            context.require(["cuda>=99"], context.select([]))
        with pytest.raises(DeviceError):
            context.select(["77"])
        context.require([], context.select(["0"]))
    with Context(Config(sim=str(machines / "a100-mig-proc"))) as context:
        assert context.nvcaps_style() == NVCAPS_PROC


@pytest.mark.parametrize("changes", [{"root": "driver"}, {"root": ""}, {"ldcache": ""}, {"ldcache": "cache"}])
def test_a_configuration_that_cannot_be_used(changes: dict[str, str]) -> None:
    with pytest.raises(InitializationError) as caught:
        Context(Config().replace(**changes))

    assert "invalid" in caught.value.message
    assert "absolute" in caught.value.hint


@root
def test_a_standalone_session_plans_without_a_process(machines: Path, rootfs: Path) -> None:
    with (
        Context(Config(sim=str(machines / "imex"), no_pivot=True)) as context,
        context.container(ContainerConfig(None, str(rootfs)), ContainerOptions(capabilities=("compute",))) as session,
    ):
        session.mount_imex_channel(2)
        session.update_ldcache()

        assert [type(operation) for operation in session.plan] == [BindMount, AllowDevices, UpdateLdcache]
        assert session.plan[-1].no_pivot
        with pytest.raises(MountError) as caught:
            session.mount_imex_channel(77)
        assert "channel77" in caught.value.message


@root
def test_a_driver_without_nvcaps_has_no_mig_rights_to_give(machines: Path, rootfs: Path) -> None:
    with (
        Context(Config(sim=str(machines / "v100-legacy"))) as context,
        context.container(ContainerConfig(None, str(rootfs)), COMPUTE) as session,
    ):
        with pytest.raises(MountError, match="mig/config"):
            session.mount_mig_config()
        with pytest.raises(MountError, match="mig/monitor"):
            session.mount_mig_monitor()


@root
def test_a_mig_device_belongs_to_one_gpu(machines: Path, rootfs: Path) -> None:
    with (
        Context(Config(sim=str(machines / "a100-mig-dev"))) as context,
        context.container(ContainerConfig(None, str(rootfs)), COMPUTE) as session,
    ):
        first, second = (gpu for gpu in context.device_info() if gpu.mig_devices)
        with pytest.raises(MountError, match="not a MIG device of"):
            session.mount_mig_access(first.mig_devices[0], second)


@root
@pytest.mark.parametrize("mode", ["mount", "ldconfig", "disabled"])
def test_compat_libraries_are_searched_first_and_never_mounted(machines: Path, rootfs: Path, mode: str) -> None:
    compat = rootfs / "usr/local/cuda-99/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.999.1").touch()
    (rootfs / "usr/local/cuda").symlink_to("cuda-99")
    with (
        Context(Config(sim=str(machines / "h200"))) as context,
        context.container(ContainerConfig(None, str(rootfs)), COMPUTE.replace(compat_mode=mode)) as session,
    ):
        session.mount_driver(context.driver_info())
        session.update_ldcache()
        update = session.plan[-1]

        assert isinstance(update, UpdateLdcache)
        expected = () if mode == "disabled" else ("/usr/local/cuda-99/compat",)
        assert update.directories == (*expected, "/usr/lib64", "/usr/lib32")
        assert not [o for o in session.plan if isinstance(o, BindMount) and "compat" in o.host_path]


def test_a_bad_root_ends_the_helper(machines: Path) -> None:
    with Context(Config(sim=str(machines / "h200"))) as context:
        with pytest.raises(ContainerError) as caught:
            context.container(ContainerConfig(None, "/nowhere/at/all"), STANDALONE)
        assert str(caught.value) == "container error: open failed: /nowhere/at/all: no such file or directory"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_session_begun_early_tells_of_the_container_first(machines: Path) -> None:
    """The caller does not wait, and still hears what failed first: the order of the reference's steps."""
    config = ContainerConfig(None, "/nowhere/at/all")
    with Context(Config(sim=str(machines / "h200"))) as context:
        with (
            pytest.raises(ContainerError, match="/nowhere/at/all"),
            context.container(config, STANDALONE, early=True),
        ):
            raise DetectionError("found out meanwhile")
        with (
            pytest.raises(ContainerError, match="/nowhere/at/all"),
            context.container(config, STANDALONE, early=True) as session,
        ):
            assert session.container
        with pytest.raises(KeyboardInterrupt), context.container(config, STANDALONE, early=True):
            raise KeyboardInterrupt
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_docstrings_name_every_function_of_the_reference() -> None:
    classes = (Config, ContainerConfig, Context, Planned, ContainerSession)
    documented = [nvc.inject.api, *classes, *(member for cls in classes for member in vars(cls).values())]
    named = {name for one in documented for name in re.findall(r"\bnvc_\w+", one.__doc__ or "")}

    assert named >= set(
        """nvc_version nvc_config_new nvc_config_free nvc_context_new nvc_context_free nvc_init nvc_shutdown
        nvc_container_config_new nvc_container_config_free nvc_container_new nvc_container_free nvc_driver_info_new
        nvc_driver_info_free nvc_device_info_new nvc_device_info_free nvc_nvcaps_style
        nvc_nvcaps_device_from_proc_path nvc_driver_mount nvc_device_mount nvc_mig_device_access_caps_mount
        nvc_mig_config_global_caps_mount nvc_mig_monitor_global_caps_mount nvc_device_mig_caps_mount
        nvc_imex_channel_mount nvc_ldcache_update nvc_error""".split()  # noqa: SIM905
    )


def test_every_public_method_has_a_docstring() -> None:
    methods = {
        f"{cls.__name__}.{name}": member
        for cls in (Context, Planned, ContainerSession)
        for name, member in vars(cls).items()
        if not name.startswith("_")
    }

    assert [] == [name for name, member in methods.items() if not member.__doc__]


def test_the_example_of_the_documentation_uses_the_api() -> None:
    text = (ROOT / "docs/internals/api.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (names,) = re.findall(r"^from nvc\.inject\.api import (.*)$", example, re.M)

    assert set(names.split(", ")) <= set(nvc.inject.api.__all__)
    for owner, cls in (("context", Context), ("session", ContainerSession)):
        assert [] == [name for name in re.findall(rf"\b{owner}\.(\w+)", example) if not hasattr(cls, name)]
