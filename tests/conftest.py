"""Fixtures that every suite shares, and the rule when a test that needs more than the machine has is skipped.

``NVC_MUST_RUN=root,system`` (as in CI) turns those skips into failures.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from nvc.agent import cgroups
from tests.support import cgroupview
from tests.support.watchdog import GRACE, Watchdog

# Before anything imports grpc: with its own handlers of fork(2) each forked child has threads again, and a process with
# threads cannot enter a mount namespace. Tests of nvc.kube are run by themselves, with them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass  # a machine for the tests of a GPU, which need none of it
else:
    # No time limit for one example, nor for making them: the machine is shared, and the suite has a limit of its own.
    settings.register_profile("nvc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("nvc")

_WATCHDOG = pytest.StashKey[Watchdog]()
#: Where the product keeps shares where no other place is given, as for a hook that an engine starts.
_PLACES = ("/run/nvc/share", "/run/nvc")
_ABSENT = pytest.StashKey[list[str]]()


def missing(marker: str) -> str:
    """Why tests with this marker cannot run here, or ""."""
    if marker in ("root", "system") and os.geteuid() != 0:
        return "needs root"
    if marker == "gpu" and not os.path.exists("/proc/driver/nvidia/version"):
        return "needs an NVIDIA GPU"
    return ""


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores it for what it starts in the background, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("usepdb"):
        config.stash[_WATCHDOG] = Watchdog()
    if not hasattr(config, "workerinput"):
        config.stash[_ABSENT] = [path for path in _PLACES if not os.path.exists(path)]


def pytest_unconfigure(config: pytest.Config) -> None:
    # After the last worker has ended: another one's container could be about to make its directory there.
    for path in config.stash.get(_ABSENT, []):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    if _WATCHDOG in config.stash:
        config.stash[_WATCHDOG].close()


@pytest.fixture(scope="session", autouse=True)
def cgroups_of_agents_go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Those of agents in temporary directories that were killed, with what could have removed them."""
    yield
    name = cgroups.tree_name(str(tmp_path_factory.getbasetemp()))
    for tree in cgroupview.directories(name):
        cgroupview.remove_tree(tree)


def limit(item: pytest.Item) -> float:
    """Seconds that pytest-timeout gives this test; 0: no limit."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs.get("timeout", 0))
    configured = item.config.getoption("timeout", None)
    return float(item.config.getini("timeout") or 0) if configured is None else float(configured)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Also what no signal ends does end: see tests/support/watchdog.py."""
    watchdog, seconds = item.config.stash.get(_WATCHDOG, None), limit(item)
    if watchdog is not None and seconds > 0:
        watchdog.begin(item.nodeid, seconds + GRACE)
    try:
        return (yield)
    finally:
        if watchdog is not None:
            watchdog.end()


def pytest_runtest_setup(item: pytest.Item) -> None:
    must = os.environ.get("NVC_MUST_RUN", "").split(",")
    for marker in ("root", "system", "gpu"):
        if item.get_closest_marker(marker) is None:
            continue
        why = missing(marker)
        if why and marker in must:
            pytest.fail(f"{marker}: {why}, and NVC_MUST_RUN names it")
        if why:
            pytest.skip(why)


def hidden(name: str, gpu: bool) -> bool:
    """Whether a test must not see this variable; gpu: a test on a GPU, which CUDA_VISIBLE_DEVICES chooses."""
    if name == "NVC_MUST_RUN" or (gpu and name == "CUDA_VISIBLE_DEVICES"):
        return False
    return name.startswith(("NVIDIA_", "NVC_", "CUDA_"))


@pytest.fixture(autouse=True)
def clean_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see none of the variables that the product reads."""
    for name in list(os.environ):
        if hidden(name, request.node.get_closest_marker("gpu") is not None):
            monkeypatch.delenv(name)
