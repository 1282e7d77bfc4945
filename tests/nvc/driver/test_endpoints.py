"""Sockets of the driver's daemons: what a local user of the host does with the paths that containers are given."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.config import HookConfig, decode
from hook.runtime.cdi import _trusted
from hook.runtime.journal import Journal
from nvc.base.errors import InputError, MountError
from nvc.base.log import Log
from nvc.cdi.gather import endpoints
from nvc.cdi.spec import CdiEdits, CdiMount
from nvc.container.apply import apply
from nvc.container.operations import BindMount
from nvc.container.plan import Scope, driver_mount
from nvc.driver.binaries import find_binaries, find_ipcs
from nvc.linux import syscalls
from nvc.model import DriverOptions, Host
from nvc.request.capabilities import DriverCapabilities
from nvc.request.injection import mps_user
from tests.support import injection
from tests.support.endpoint_hosts import (
    ATTACKS,
    CANONICAL,
    MALLORY,
    MPS,
    NVPD,
    OLD_KERNEL,
    PIPES,
    SOCKET,
    as_mallory,
    link,
    make_host,
    make_socket,
    meanwhile,
    own_directory,
)
from tests.support.injection import container, isolated, locate

pytestmark = pytest.mark.root
Given = dict[str, tuple[int, int]]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path / "host")


def given(root: Path | str, rootfs: Path, environ: dict[str, str] | None = None, *, user: int = 0) -> Given:
    """What a new compute container finds mounted: path in it -> (device, inode) of what is there."""
    options = DriverOptions(mps_user=user)
    files, _ = find_ipcs(str(root), environ or {}, options)
    return mounted(root, rootfs, files)


def mounted(root: Path | str, rootfs: Path, files: object) -> Given:
    driver = injection.driver().replace(
        libraries=(),
        binaries=(),
        firmwares=(),
        nodes=(),
        ipcs=tuple(files),  # type: ignore[arg-type]
    )
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        scope = Scope(located.container, DriverCapabilities.parse("compute,utility"), cgroups=False)
        plan = [operation for operation in driver_mount(scope, driver, ()) if isinstance(operation, BindMount)]
        before = points(pid, rootfs)
        try:
            apply(located, str(root), plan, Log.none())
        except MountError:
            return {}
        found = {}
        for path in points(pid, rootfs) - before:
            status = injection.inside(pid, rootfs, path).stat()
            found[path] = status.st_dev, status.st_ino
        return found


def points(pid: int, rootfs: Path) -> set[str]:
    lines = (line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return {point.removeprefix(str(rootfs)) for point in lines if point.startswith(f"{rootfs}/")}


@pytest.mark.parametrize(("attack", "variable"), ATTACKS)
def test_nothing_of_a_users_is_given(host: Path, rootfs: Path, attack: Callable[[Path], None], variable: str) -> None:
    @isolated
    def check() -> None:
        attack(host)
        environ = {"CUDA_MPS_PIPE_DIRECTORY": variable} if variable else {}
        files, warnings = find_ipcs(str(host), environ, DriverOptions())
        assert mounted(host, rootfs, files) == {}
        assert files == []
        assert len(warnings) == 3

    check()


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_what_root_made_is_given_at_its_own_path(host: Path, rootfs: Path, kernel: str) -> None:
    make_socket(host / SOCKET[1:])
    make_socket(host / "tmp/nvidia-mps/control")
    (host / "tmp/nvidia-mps").chmod(0o777)

    @isolated
    def check() -> None:
        if kernel == "old":
            syscalls.unavailable.update(OLD_KERNEL)
        # The image's own link, so that the path of the table leads to the same place in the container.
        (rootfs / "run").mkdir()
        (rootfs / "var/run").symlink_to("/run")
        socket, pipes = (host / SOCKET[1:]).stat(), (host / "tmp/nvidia-mps").stat()
        assert given(host, rootfs) == {SOCKET: (socket.st_dev, socket.st_ino), PIPES: (pipes.st_dev, pipes.st_ino)}

    check()


@isolated
def test_the_container_has_the_path_of_the_table(host: Path, rootfs: Path) -> None:
    make_socket(host / SOCKET[1:])
    assert given(host, rootfs).keys() == {CANONICAL}


@isolated
def test_a_pipe_directory_that_a_variable_names(host: Path, rootfs: Path) -> None:
    make_socket(host / "run/mps/control")
    (host / "srv/mps").symlink_to("/run/mps")
    found = given(host, rootfs, {"CUDA_MPS_PIPE_DIRECTORY": "srv/mps"})
    assert [*found] == ["/srv/mps"]


@isolated
def test_a_daemon_with_an_account_of_its_own(host: Path, rootfs: Path) -> None:
    make_socket(host / SOCKET[1:], NVPD)
    os.chown(host / "run/nvidia-persistenced", NVPD, NVPD)
    assert given(host, rootfs).keys() == {CANONICAL}


@isolated
def test_in_a_user_namespace_root_is_known_where_nobody_else_makes_names() -> None:
    """The host's root and its users are one there: uid 65534."""
    injection.mount("tmpfs", "/mnt", "tmpfs", 0, "mode=0755")
    host = make_host(Path("/mnt/host"))
    make_socket(host / SOCKET[1:], NVPD)
    make_socket(host / "tmp/nvidia-mps/control")
    make_socket(host / "run/mps/control")
    with injection.user_namespace_container(injection.make_rootfs(Path("/mnt/rootfs")), 100_000) as pid:
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for kind in ("user", "mnt"):
                    with open(f"/proc/{pid}/ns/{kind}") as namespace:
                        injection.check(injection._libc.setns(namespace.fileno(), 0), "setns")
                os.setresuid(0, 0, 0)
                found = [
                    find_ipcs(str(host), {"CUDA_MPS_PIPE_DIRECTORY": path}, DriverOptions())[0]
                    for path in ("", "/run/mps")
                ]
                os.write(tell, " ".join(file.path for files in found for file in files).encode())
            finally:
                os._exit(0)
        os.close(tell)
        assert os.read(ready, 4096).decode().split() == [CANONICAL, CANONICAL, "/run/mps"]
        os.waitpid(child, 0)


@isolated
def test_a_spec_has_what_root_alone_can_replace(host: Path) -> None:
    """An engine mounts by name, at any time later."""
    make_socket(host / SOCKET[1:])
    make_socket(host / "tmp/nvidia-mps/control")
    make_socket(host / "run/mps/control", MPS)
    os.chown(host / "run/mps", MPS, MPS)
    (host / "srv/mps").symlink_to("/run/mps")
    for variable, expected in (("", ""), ("/srv/mps", "/run/mps")):
        files, _ = find_ipcs(str(host), {"CUDA_MPS_PIPE_DIRECTORY": variable}, DriverOptions(mps_user=MPS))
        found = endpoints(Host(root=str(host)), files)
        assert found == {CANONICAL: SOCKET, variable or PIPES: expected}
    os.chown(host / "run/nvidia-persistenced", NVPD, NVPD)
    assert endpoints(Host(root=str(host)), files)[CANONICAL] == ""


@isolated
def test_a_spec_of_others_is_looked_at_when_it_is_used(host: Path) -> None:
    make_socket(host / SOCKET[1:])
    make_socket(host / "tmp/nvidia-mps/control")
    (host / "usr/bin/nvidia-smi").touch()
    paths = (SOCKET, CANONICAL, PIPES, "/usr/bin/nvidia-smi")
    edits = CdiEdits(mounts=tuple(CdiMount(f"{host}{path}", path, ("rbind",)) for path in paths))
    config = HookConfig(root=str(host))
    kept = _trusted(edits, config, Journal())
    assert [mount.container_path for mount in kept.mounts] == [SOCKET, CANONICAL, "/usr/bin/nvidia-smi"]
    # What stands below the driver root says nothing of a path that does not lead there.
    outside = CdiEdits(mounts=(CdiMount(SOCKET, CANONICAL, ("rbind",)), CdiMount("/etc", PIPES, ("rbind",))))
    assert _trusted(outside, config, Journal()).mounts == ()
    os.chown(host / "run/nvidia-persistenced", MALLORY, MALLORY)
    kept = _trusted(edits, config, Journal())
    assert [mount.container_path for mount in kept.mounts] == ["/usr/bin/nvidia-smi"]


def test_the_user_is_named_by_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    assert mps_user(str(file)) == 0
    for text, uid in (("[mps]\n", 0), ('[mps]\nuser = "12347"\n', MPS), ('[mps]\nuser = "root"\n', 0)):
        file.write_text(text)
        assert mps_user(str(file)) == uid
        assert decode(text.encode(), "config.toml").unknown == ()
    for text, message in (
        ("[mps]\nuser = 7\n", "mps.user is not a string"),
        ('[mps]\nuser = "no such user"\n', "mps.user = 'no such user': "),
        ("mps", "not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            mps_user(str(file))
    with pytest.raises(InputError, match=r"mps\.user is not a string"):
        decode(b"[mps]\nuser = 7\n", "config.toml")


@isolated
def test_the_mps_server_of_a_configured_user(host: Path, rootfs: Path) -> None:
    make_socket(host / "tmp/nvidia-mps/control", MPS)
    os.chown(host / "tmp/nvidia-mps", MPS, MPS)
    assert given(host, rootfs) == {}
    assert given(host, rootfs, user=MALLORY) == {}
    assert given(host, rootfs, user=MPS).keys() == {PIPES}


@isolated
def test_what_was_roots_when_it_was_found_is_looked_at_again(host: Path, rootfs: Path) -> None:
    """The inventory is kept: between a look and a mount the server may have gone."""
    make_socket(host / "tmp/nvidia-mps/control")
    files, _ = find_ipcs(str(host), {}, DriverOptions())
    assert [file.path for file in files] == [PIPES]
    assert mounted(host, rootfs, files).keys() == {PIPES}
    shutil.rmtree(host / "tmp/nvidia-mps")
    link(host)
    assert mounted(host, rootfs, files) == {}


@isolated
def test_the_hosts_own_tmp(tmp_path: Path) -> None:
    """The driver root is "/", as on most hosts. fs.protected_symlinks may be 0, as here."""
    injection.mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777")
    rootfs = injection.make_rootfs(Path("/tmp/rootfs"))
    here = Path("/")
    environ = {"PATH": "/usr/bin"}
    for attack in (link, own_directory):
        attack(here)
        assert not {"/etc", PIPES} & given("/", rootfs, environ).keys()
        place = Path(PIPES)
        place.unlink() if place.is_symlink() else shutil.rmtree(place)
    make_socket(Path(PIPES) / "control")
    assert PIPES in given("/", rootfs, environ)


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_user_who_exchanges_what_is_there(host: Path, rootfs: Path, kernel: str) -> None:
    """A directory of the attacker's, and a link to /etc, under the one name in turn."""

    def exchange() -> None:
        injection._libc.renameat2(-100, b"nvidia-mps", -100, b"other", 2)

    def prepare() -> None:
        os.mkdir("nvidia-mps", 0o777)
        os.mknod("nvidia-mps/control", stat.S_IFSOCK | 0o666)
        os.symlink("/etc", "other")

    @isolated
    def check() -> None:
        if kernel == "old":
            syscalls.unavailable.update(OLD_KERNEL)
        as_mallory(host / "tmp", prepare)
        with meanwhile(host / "tmp", exchange):
            for _ in range(20):
                assert given(host, rootfs) == {}

    check()


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_user_who_waits_for_the_servers_end(host: Path, rootfs: Path, kernel: str) -> None:
    """Root's server comes and goes; whenever its directory is missing, the attacker puts a link there."""
    pipes = host / "tmp/nvidia-mps"

    def jump_in() -> None:
        try:
            os.symlink("/etc", "nvidia-mps")
        except FileExistsError:
            pass

    def server() -> None:
        os.chdir(host / "tmp")
        while True:
            try:
                os.unlink("nvidia-mps")
            except (FileNotFoundError, IsADirectoryError):
                pass
            try:
                os.mkdir("nvidia-mps")
                os.mknod("nvidia-mps/control", stat.S_IFSOCK | 0o666)
                os.unlink("nvidia-mps/control")
                os.rmdir("nvidia-mps")
            except OSError:
                pass

    @isolated
    def check() -> None:
        if kernel == "old":
            syscalls.unavailable.update(OLD_KERNEL)
        make_socket(pipes / "control")
        files, _ = find_ipcs(str(host), {}, DriverOptions())
        assert [file.path for file in files] == [PIPES]
        shutil.rmtree(pipes)
        secret = (host / "etc").stat()
        pid = os.fork()
        if pid == 0:
            try:
                server()
            finally:
                os._exit(1)
        try:
            with meanwhile(host / "tmp", jump_in):
                for _ in range(20):
                    found = mounted(host, rootfs, files)
                    assert found.keys() <= {PIPES}
                    assert (secret.st_dev, secret.st_ino) not in found.values()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    check()


@isolated
def test_a_users_link_among_the_programs_of_path(host: Path) -> None:
    """PATH is a variable too: one directory of it that a user may write, and a container had any file of the host."""
    (host / "srv/bin").mkdir()
    os.chown(host / "srv/bin", MALLORY, MALLORY)
    as_mallory(host / "srv/bin", lambda: os.symlink("/etc/shadow", "nvidia-smi"))
    (host / "usr/bin/nvidia-smi").write_text("\x7fELF")
    files, warnings = find_binaries(str(host), ("/srv/bin", "/usr/bin"), DriverOptions())
    assert [file.path for file in files] == ["/usr/bin/nvidia-smi"]
    assert any("skipping binary /srv/bin/nvidia-smi" in line for line in warnings)


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_users_link_in_place_of_a_library(host: Path, rootfs: Path, kernel: str) -> None:
    """Found as a file, exchanged before it is mounted."""
    (host / "srv/lib").mkdir()
    os.chown(host / "srv/lib", MALLORY, MALLORY)
    as_mallory(host / "srv/lib", lambda: os.symlink("/etc/shadow", "libcuda.so.1"))
    operation = BindMount("/srv/lib/libcuda.so.1", "/usr/lib64/libcuda.so.1", "regular", ("ro",))

    @isolated
    def check() -> None:
        if kernel == "old":
            syscalls.unavailable.update(OLD_KERNEL)
        with container(rootfs) as pid, pytest.raises(MountError) as caught:
            apply(locate(pid, rootfs), str(host), (operation,), Log.none())
        assert "/srv/lib/libcuda.so.1 is a link" in caught.value.message
        assert "give the link" in caught.value.hint

    check()
