"""What is done while ldconfig runs: it fails, ldconfig does, the hook is killed. Nothing half done is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hook import cdi
from hook.state import State
from nvc.base.errors import InputError, LdcacheError
from nvc.base.log import Log
from nvc.cdi import hooks, worker
from nvc.cdi.hooks import HookTarget
from tests.nvc.cdi.conftest import enter
from tests.support.injection import isolated, tree
from tests.support.leftovers import until

LOG = Log.none()
FOLDERS = ["/usr/lib/driver"]
WORDS = (
    *("share", "then", "create-symlinks", "--link=x::/usr/lib/y", "then", "enable-cuda-compat", "then"),
    *("update-ldcache", "--folder=/usr/lib/driver", "then", "disable-device-node-modification", "then"),
    *("chmod", "--mode=755", "--path=/dev/dri", "then", "update-application-profile", "then", "update-ldcache"),
)


def test_a_share_is_made_while_ldconfig_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links and configuration come first, as ldconfig reads them; a second update comes after."""
    done = []
    for name in ("share", "create_symlinks", "enable_cuda_compat", "chmod"):
        monkeypatch.setattr(hooks, name, lambda *_, name=name: done.append(name))
    for name in ("disable_device_node_modification", "update_application_profile"):
        monkeypatch.setattr(hooks, name, lambda *_, name=name: done.append(name))

    def update(target: HookTarget, folders: object, ldconfig: str, log: Log, meanwhile: object = None) -> None:
        done.append("begin")
        if callable(meanwhile):
            meanwhile()
        done.append("end")

    monkeypatch.setattr(hooks, "update_ldcache", update)
    (tmp_path / "root").mkdir()
    (tmp_path / "config.json").write_text('{"ociVersion": "1.0.2", "root": {"path": "root"}, "process": {"env": []}}')
    steps = cdi._steps(WORDS)
    cdi._work(steps, *cdi._calls(steps), State("x", "creating", 1, str(tmp_path)), LOG)
    assert done == [
        *("create_symlinks", "enable_cuda_compat", "begin", "share", "disable_device_node_modification"),
        *("update_application_profile", "end", "chmod", "begin", "end"),
    ]


def test_without_an_update_the_order_is_that_of_the_words() -> None:
    calls = cdi._calls(cdi._steps(("share", "then", "create-symlinks", "--link=x::/y")))[1]
    assert [len(part) for part in cdi._arranged(calls)] == [2, 0, 0, 0]


@pytest.mark.root
@isolated
def test_the_cache_is_there_only_after_both(rootfs: Path) -> None:
    target = enter(rootfs)
    cache, seen = rootfs / "etc/ld.so.cache", []
    before = cache.read_bytes() if cache.exists() else b""
    hooks.update_ldcache(target, FOLDERS, "", LOG, lambda: seen.append(cache.read_bytes() if cache.exists() else b""))
    assert seen == [before]
    assert cache.read_bytes() != before


def hang(rootfs: Path) -> list[tuple[str, object]]:
    """Have ldconfig wait for a writer; what the root has, the hook's own files of configuration made."""
    os.mkfifo(rootfs / "etc/ld.so.conf.d/wait.conf")
    target = enter(rootfs)
    with pytest.raises(LdcacheError):
        hooks.update_ldcache(target.replace(timeout=0.2), FOLDERS, "", LOG)
    return content(rootfs)


def content(rootfs: Path) -> list[tuple[str, object]]:
    return sorted(tree(rootfs, skip=("proc", "dev")).items())


def children(pid: int) -> list[int]:
    """Processes with this parent, and theirs."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found += [int(name), *children(int(name))]
    return found


@pytest.mark.root
@isolated
def test_a_failure_beside_it_ends_ldconfig_and_takes_it_back(rootfs: Path) -> None:
    before = hang(rootfs)

    def fail() -> None:
        assert children(os.getpid()), "ldconfig does not run"
        raise InputError("no share")

    begun = time.monotonic()
    with pytest.raises(InputError, match="no share"):
        hooks.update_ldcache(HookTarget(str(rootfs)), FOLDERS, "", LOG, fail)
    assert time.monotonic() - begun < 5
    assert content(rootfs) == before
    assert not children(os.getpid())


@pytest.mark.root
@isolated
def test_a_failure_of_ldconfig_is_told_when_the_rest_is_done(rootfs: Path) -> None:
    before, done = hang(rootfs), []
    target = HookTarget(str(rootfs), timeout=0.2)
    with pytest.raises(LdcacheError, match="did not end within"):
        hooks.update_ldcache(target, FOLDERS, "", LOG, lambda: done.append("share"))
    assert (done, content(rootfs)) == (["share"], before)


@pytest.mark.root
@isolated
def test_nothing_is_begun_where_ldconfig_is_not(rootfs: Path) -> None:
    target, done = enter(rootfs), []
    (rootfs / "etc/ld.so.conf").unlink(missing_ok=True)
    os.mkfifo(rootfs / "etc/ld.so.conf")
    with pytest.raises(LdcacheError, match="is a FIFO"):
        hooks.update_ldcache(target, FOLDERS, "", LOG, lambda: done.append("share"))
    assert not done


@pytest.mark.root
@isolated
def test_a_killed_hook_leaves_neither(rootfs: Path) -> None:
    before = hang(rootfs)
    hook = os.fork()
    if hook == 0:
        target = HookTarget(str(rootfs))
        work = lambda: hooks.update_ldcache(target, FOLDERS, "", LOG, lambda: time.sleep(60))  # noqa: E731
        try:
            worker.run(work, 60.0, ldconfig=True)
        finally:
            os._exit(1)
    etc = rootfs / "etc"
    assert until(lambda: any(name.startswith("ld.so.cache.nvc-") for name in os.listdir(etc)), seconds=10)
    helpers = children(hook)
    assert len(helpers) == 2, "the helper and ldconfig"
    os.kill(hook, signal.SIGKILL)
    os.waitpid(hook, 0)
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers), seconds=10)
    assert content(rootfs) == before
