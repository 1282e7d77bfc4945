"""The state on stdin: what runc and crun really write, and everything that is not a state."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from hook.state import PID_LIMIT, State, decode, read, require_inside, require_pid
from nvc.base.errors import ContainerError, InputError
from rpc.codec import dumps

RUNC = '"ociVersion":"1.0.2-dev","id":"t1","status":"creating"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '{"ociVersion":"1.0.2-dev","id":"t1","status":"creating","pid":25084,"bundle":"/b/runc-h"}',
            State("t1", "creating", 25084, "/b/runc-h"),
            id="runc 1.1.5 at prestart",
        ),
        pytest.param(
            '{"ociVersion":"1.2.0","id":"t1","status":"creating","pid":25084,"bundle":"/b/runc-h",'
            '"annotations":{"org.test":"x"}}',
            State("t1", "creating", 25084, "/b/runc-h"),
            id="runc 1.1.15 at prestart, with annotations",
        ),
        pytest.param(
            '{"ociVersion":"1.0","id":"t2","pid":29000,"root":"/bed/rootfs/bb","bundle":"/b/crun-h","status":"created"}',
            State("t2", "created", 29000, "/b/crun-h", "/bed/rootfs/bb"),
            id="crun at prestart",
        ),
        pytest.param(
            '{"ociVersion":"1.0","id":"t2","pid":29000,"root":"rootfs","bundle":"/b/crun-h","status":"created"}',
            State("t2", "created", 29000, "/b/crun-h", "rootfs"),
            id="crun at prestart, relative root",
        ),
        pytest.param(
            '{"ociVersion":"1.0.2-dev","id":"t1","status":"created","pid":1,"bundle":"/b/runc-h"}',
            State("t1", "created", 1, "/b/runc-h"),
            id="runc at createContainer",
        ),
        pytest.param(
            '{"ociVersion":"1.0","id":"t2","pid":0,"root":"rootfs","bundle":"/b/crun-h","status":"created"}',
            State("t2", "created", 0, "/b/crun-h", "rootfs"),
            id="crun at createContainer",
        ),
        pytest.param('{"bundlePath":"/old","pid":7}', State("", "", 7, "/old"), id="bundlePath of old runc"),
        pytest.param('{"bundle":"/a","bundlePath":"/b"}', State("", "", 0, "/a"), id="bundle before bundlePath"),
        pytest.param('{"bundle":"","bundlePath":"/b"}', State("", "", 0, "/b"), id="bundlePath when bundle is empty"),
        pytest.param('{"bundle":"/a","pid":null,"root":null,"id":null}', State("", "", 0, "/a"), id="nulls are absent"),
        pytest.param(' \n{"bundle":"/a"}\n', State("", "", 0, "/a"), id="space around"),
        pytest.param('{"bundle":"/a","bundle":"/b"}', State("", "", 0, "/b"), id="last of two keys"),
    ],
)
def test_reads_what_runtimes_write(text: str, expected: State) -> None:
    assert expected == decode(text.encode())


def test_relative_bundle_is_below_the_runtimes_directory() -> None:
    assert decode(b'{"bundle":"b"}', "/run/x").bundle == "/run/x/b"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b" \n\t", "is empty", id="only space"),
        pytest.param(b"hello", "is not JSON: .* line 1 column 1", id="not JSON"),
        pytest.param(b'{"pid":1,', "is not JSON", id="cut off"),
        pytest.param(b'{"bundle":"/a"} x', "is not JSON", id="more after it"),
        pytest.param(b"\xff\xfe{}", "is not JSON", id="not UTF-8"),
        pytest.param(b"\0" * 50, "is not JSON", id="NULs"),
        pytest.param(b"[" * 200_000, "is not JSON: nested too deeply", id="deep list"),
        pytest.param(b'{"a":' * 100_000, "is not JSON: nested too deeply", id="deep object"),
        pytest.param(b'{"pid":' + b"9" * 5000 + b"}", "is not JSON", id="number of 5000 digits"),
        pytest.param(b'{"pid":NaN}', "is not JSON", id="NaN"),
        pytest.param(b"[]", "not a JSON object", id="list"),
        pytest.param(b"null", "not a JSON object", id="null"),
        pytest.param(b'"/bundle"', "not a JSON object", id="string"),
        pytest.param(b"{}", "bundle is missing", id="no bundle"),
        pytest.param(b'{"bundle":""}', "bundle is missing", id="empty bundle"),
        pytest.param(b'{"bundle":7}', "bundle is a number, not a string", id="bundle of wrong type"),
        pytest.param(b'{"bundle":"b"}', "'b' is not an absolute path", id="relative bundle, directory unknown"),
        pytest.param(b'{"bundle":"/a\\u0000b"}', "NUL", id="NUL in bundle"),
        pytest.param(b'{"bundle":"/a","root":["/"]}', "root is a list", id="root of wrong type"),
        pytest.param(b'{"bundle":"/a","root":"/\\u0000"}', "NUL", id="NUL in root"),
        pytest.param(b'{"bundle":"/a","pid":"12"}', "pid is a string, not an integer", id="pid is text"),
        pytest.param(b'{"bundle":"/a","pid":true}', "pid is a boolean", id="pid is a boolean"),
        pytest.param(b'{"bundle":"/a","pid":1.5}', "pid is a number, not an integer", id="pid is a fraction"),
        pytest.param(b'{"bundle":"/a","pid":{}}', "pid is an object", id="pid is an object"),
        pytest.param(b'{"bundle":"/a","pid":-1}', "not between", id="negative pid"),
        pytest.param(b'{"bundle":"/a","pid":99999999999999999999}', "not between", id="enormous pid"),
        pytest.param(b'{"bundle":"/a","status":3}', "status is a number", id="status of wrong type"),
        pytest.param(b'{"bundle":"/a","id":{}}', "id is an object", id="id of wrong type"),
    ],
)
def test_refuses_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        decode(data)


def test_refuses_a_stopped_container_by_name() -> None:
    with pytest.raises(ContainerError, match="container t9 is stopped"):
        decode(b'{"id":"t9","status":"stopped","bundle":"/a"}')


@pytest.mark.parametrize(
    ("pid", "words"), [pytest.param(0, "has no pid", id="none"), pytest.param(1, "pid 1", id="init")]
)
def test_pid_that_is_no_containers(pid: int, words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        require_pid(State("t", "created", pid, "/b"))


@pytest.mark.parametrize("pid", [2, PID_LIMIT])
def test_pid_of_a_container(pid: int) -> None:
    assert pid == require_pid(State("t", "created", pid, "/b"))


def with_pipe(data: bytes, use: Callable[[int], Any], *, close: bool = True) -> Any:
    reader, writer = os.pipe()
    try:
        os.write(writer, data)
        if close:
            os.close(writer)
        return use(reader)
    finally:
        os.close(reader)
        if not close:
            os.close(writer)


def test_reads_to_the_end_of_the_pipe() -> None:
    assert with_pipe(b'{"a":1}', lambda fd: read(fd, 5.0)) == b'{"a":1}'


def test_pipe_that_never_closes_ends_with_the_time_limit() -> None:
    start = time.monotonic()

    with pytest.raises(InputError, match=r"within 0\.2 s"):
        with_pipe(b'{"bundle":"/a"}', lambda fd: read(fd, 0.2), close=False)

    assert 0.15 <= time.monotonic() - start < 50


def test_more_than_the_limit_is_not_read() -> None:
    with pytest.raises(InputError, match="larger than 1 KiB"):
        with_pipe(b" " * 3000, lambda fd: read(fd, 5.0, limit=1024))


def test_endless_input_is_refused() -> None:
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        with pytest.raises(InputError, match="larger than 1024 KiB"):
            read(descriptor, 5.0)
    finally:
        os.close(descriptor)


def test_unreadable_stdin_is_an_error() -> None:
    descriptor = os.open("/", os.O_RDONLY)
    try:
        with pytest.raises(InputError, match="cannot be read: Is a directory"):
            read(descriptor, 1.0)
    finally:
        os.close(descriptor)


def test_state_of_the_largest_size_is_decoded() -> None:
    state = {"bundle": "/a", "annotations": {"x": "y" * (1 << 19)}}

    assert decode(dumps(state)).bundle == "/a"


def test_a_create_container_hook_must_be_in_the_container() -> None:
    def state(pid: int) -> State:
        return State("c", "created", pid, "/b")

    for pid in (0, 1, os.getpid(), PID_LIMIT):
        require_inside(state(pid), "")
    script = ["unshare", "-Urm", "sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(script, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            with pytest.raises(ContainerError, match="not in the container's mount namespace"):
                require_inside(state(other.pid), "")
        finally:
            other.kill()
