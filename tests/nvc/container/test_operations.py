"""Operations cross to the helper as data and describe themselves."""

from __future__ import annotations

import pytest

from nvc.base.record import DecodeError
from nvc.container.operations import (
    KINDS,
    AllowDevices,
    ApplicationProfile,
    BindMount,
    EndpointMount,
    ShareFiles,
    Symlink,
    Tmpfs,
    UpdateLdcache,
    decode,
    encode,
)
from nvc.model import ProcFile
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from rpc.codec import dumps, loads

EVERY = (
    BindMount("/usr/lib/a.so", "/usr/lib64/a.so", "regular", ("ro", "nodev")),
    BindMount("/dev/nvidia0", "/dev/nvidia0", "device", ("ro",), 195, 0, optional=True),
    EndpointMount("/tmp/mps", "/tmp/mps", "endpoint", ("nodev",), optional=True, owners=(1000,), server="control"),
    Tmpfs("/proc/x", 0o555, ("/proc/x/d",), (ProcFile("/proc/x/f", 0o444, "text\n"),)),
    ApplicationProfile((0, 64)),
    Symlink("/usr/lib/libcuda.so", "libcuda.so.1"),
    AllowDevices(((195, 255), (235, 0))),
    UpdateLdcache("/sbin/ldconfig", ("/usr/lib64",), True, 1.5),
    ShareFiles("/run/nvc/share", "key", "id", Limits((ResolvedGpu("GPU-1", 0),)), ("/usr/lib/nvc/x.so",), "mem=1Gi"),
)


def test_survive_the_way_through_json() -> None:
    assert EVERY == decode(loads(dumps(encode(EVERY))))


def test_every_kind_is_covered_here_and_describes_itself_in_a_line() -> None:
    assert {type(operation) for operation in EVERY} == set(KINDS.values())
    for operation in EVERY:
        text = operation.describe()
        assert text
        assert "\n" not in text


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        pytest.param(EVERY[0], "mount file /usr/lib/a.so on /usr/lib64/a.so (ro,nodev)", id="library"),
        pytest.param(EVERY[1], "mount device node /dev/nvidia0 195:0 (ro), if the host has it", id="optional node"),
        pytest.param(
            EVERY[2],
            "mount directory /tmp/mps of root or user 1000 with the socket control (nodev), if the host has it",
            id="endpoint",
        ),
        pytest.param(
            EVERY[3],
            "mount a read-only tmpfs on /proc/x with f and 1 mount points (ro,nodev,nosuid,noexec)",
            id="tmpfs",
        ),
        pytest.param(EVERY[6], "allow character devices 195:255, 235:0 (rw) in the device cgroup", id="rules"),
    ],
)
def test_descriptions(operation: BindMount, expected: str) -> None:
    assert expected == operation.describe()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param({}, "expected a list", id="not a list"),
        pytest.param([1], "operations[0]: expected an object", id="not an object"),
        pytest.param([{"operation": "Shell"}], "unknown operation 'Shell'", id="unknown kind"),
        pytest.param([{"operation": ["BindMount"]}], "unknown operation", id="kind of a wrong type"),
        pytest.param([{"operation": "Symlink", "text": "x"}], "missing field 'container_path'", id="missing field"),
        pytest.param([{"operation": "AllowDevices", "rules": [[1]]}], "expected a list of 2", id="half a rule"),
    ],
)
def test_refuses_other_data(data: object, expected: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data)

    assert expected in str(caught.value)
