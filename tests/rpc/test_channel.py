"""Packets and descriptors: whole or refused, never leaked, never open in a program that is executed."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import time
from collections.abc import Iterator

import pytest

from rpc import channel
from rpc.channel import Channel
from rpc.errors import ChannelError
from tests.support.demo_service import open_descriptors


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = channel.pair()
    yield one, other
    one.close()
    other.close()


def raw(end: Channel) -> socket.socket:
    """The same socket, for packets that ``Channel`` would not send."""
    return socket.socket(fileno=os.dup(end.fileno()))


def send_raw(end: Channel, packet: bytes, fds: list[int]) -> None:
    with raw(end) as sock:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sock.sendmsg([packet], ancillary)


def memory(content: bytes, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(0, id="empty"),
        pytest.param(1, id="one byte"),
        pytest.param(channel.INLINE, id="largest packet"),
        pytest.param(channel.INLINE + 1, id="smallest memfd"),
        pytest.param(channel.LIMIT, id="largest message"),
    ],
)
def test_a_message_arrives_whole_with_its_descriptors(ends: tuple[Channel, Channel], size: int) -> None:
    before = open_descriptors()
    message = os.urandom(1024) * (size // 1024) + b"x" * (size % 1024)
    ends[0].send(message, [0, 1])
    received = ends[1].receive()
    assert received is not None
    text, fds = received
    assert message == text
    assert [os.fstat(0).st_ino, os.fstat(1).st_ino] == [os.fstat(fd).st_ino for fd in fds]
    channel.close_all(fds)
    assert before == open_descriptors()


def test_descriptors_and_sockets_are_closed_on_exec(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(b"", [0])
    received = ends[1].receive()
    assert received is not None
    assert not any(os.get_inheritable(fd) for fd in (received[1][0], ends[0].fileno(), ends[1].fileno()))
    channel.close_all(received[1])


def test_sixteen_descriptors_fit_beside_a_long_message(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(b"x" * 100_000, [0] * channel.MAX_FDS)
    received = ends[1].receive()
    assert received is not None
    assert channel.MAX_FDS == len(received[1])
    channel.close_all(received[1])


def test_too_much_is_not_sent(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(ChannelError, match="17 descriptors in one message, more than 16"):
        ends[0].send(b"", [0] * 17)
    with pytest.raises(ChannelError, match="a message of 8388609 bytes, more than 8388608"):
        ends[0].send(b"x" * (channel.LIMIT + 1))


@pytest.mark.parametrize(
    ("packet", "fds", "message"),
    [
        pytest.param(b"J" + b"x" * (channel.INLINE + 1), 0, "cut", id="too long"),
        pytest.param(b"J", 19, "cut", id="more descriptors than there is room for"),
        pytest.param(b"J", 17, "more than 16 descriptors", id="one descriptor too many"),
        pytest.param(b"X{}", 1, "not a message: b'X{}'", id="neither kind"),
        pytest.param(b"M5", 0, "not a message", id="memfd missing"),
        pytest.param(b"M", 1, "not a message", id="length missing"),
        pytest.param(b"M-5", 1, "not a message", id="negative length"),
        pytest.param(b"M" + b"9" * 30, 1, "not a message", id="endless length"),
        pytest.param(b"M5", 1, "not a sealed memfd", id="a device instead of a memfd"),
    ],
)
def test_a_packet_that_must_not_be_believed_is_refused_and_its_descriptors_closed(
    ends: tuple[Channel, Channel], packet: bytes, fds: int, message: str
) -> None:
    before = open_descriptors()
    null = os.open("/dev/null", os.O_RDWR)
    send_raw(ends[0], packet, [null] * fds)
    os.close(null)
    with pytest.raises(ChannelError, match=message):
        ends[1].receive()
    assert before == open_descriptors()


@pytest.mark.parametrize(
    ("content", "seals", "length", "message"),
    [
        pytest.param(b"12345", 0, b"5", "not a sealed memfd", id="no seals"),
        pytest.param(b"12345", ALL_SEALS & ~fcntl.F_SEAL_WRITE, b"5", "not a sealed memfd", id="writable"),
        pytest.param(b"12345", ALL_SEALS & ~fcntl.F_SEAL_SEAL, b"5", "not a sealed memfd", id="seals not sealed"),
        pytest.param(b"12345", ALL_SEALS, b"6", "5 bytes that says 6", id="longer than it is"),
        pytest.param(b"12345", ALL_SEALS, b"4", "5 bytes that says 4", id="shorter than it is"),
        pytest.param(b"x" * (channel.LIMIT + 1), ALL_SEALS, b"8388609", "8388609 bytes", id="over the limit"),
    ],
)
def test_a_memfd_that_can_change_or_lies_is_refused(
    ends: tuple[Channel, Channel], content: bytes, seals: int, length: bytes, message: str
) -> None:
    before = open_descriptors()
    fd = memory(content, seals)
    send_raw(ends[0], b"M" + length, [fd])
    os.close(fd)
    with pytest.raises(ChannelError, match=message):
        ends[1].receive()
    assert before == open_descriptors()


def test_other_ancillary_data_is_not_taken_for_descriptors(ends: tuple[Channel, Channel]) -> None:
    with raw(ends[1]) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ends[0].send(b"x")
    assert (b"x", []) == ends[1].receive()


def test_the_end_of_the_peer_is_the_end_of_file(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    assert ends[1].receive() is None


def test_an_empty_packet_is_the_end_of_file_and_its_descriptors_are_closed(ends: tuple[Channel, Channel]) -> None:
    before = open_descriptors()
    send_raw(ends[0], b"", [0])
    assert ends[1].receive() is None
    assert before == open_descriptors()


def test_finish_ends_one_direction_only(ends: tuple[Channel, Channel]) -> None:
    ends[0].finish()
    assert ends[1].receive() is None
    ends[1].send(b"still")
    assert (b"still", []) == ends[0].receive()


def test_finish_does_not_mind_a_peer_that_is_gone(ends: tuple[Channel, Channel]) -> None:
    ends[1].close()
    ends[0].finish()


def test_finish_reports_what_is_not_about_the_peer(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ends[0].finish()


def test_sending_to_nobody_is_an_error_and_not_a_signal(ends: tuple[Channel, Channel]) -> None:
    ends[1].close()
    with pytest.raises(BrokenPipeError):
        ends[0].send(b"x")


def test_waiting_has_an_end(ends: tuple[Channel, Channel]) -> None:
    begin = time.monotonic()
    with pytest.raises(channel.DeadlinePassed):
        ends[0].receive(begin + 0.05)
    assert 0.05 <= time.monotonic() - begin < 50


def test_a_peer_that_does_not_read_is_waited_for_only_so_long(ends: tuple[Channel, Channel]) -> None:
    begin = time.monotonic()
    with pytest.raises(channel.DeadlinePassed):
        for _ in range(10_000):
            ends[0].send(b"x" * 1000, (), begin + 0.2)
    assert time.monotonic() - begin < 50


def test_a_peer_that_reads_late_gets_everything(ends: tuple[Channel, Channel]) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(0.1)
        count = sum(1 for _ in range(300) if ends[1].receive() is not None)
        os._exit(0 if count == 300 else 1)
    for _ in range(300):
        ends[0].send(b"x" * 5000, (), time.monotonic() + 60)
    assert 0 == os.waitpid(child, 0)[1]


def test_a_small_send_buffer_does_not_matter(ends: tuple[Channel, Channel]) -> None:
    """An administrator may set net.core.wmem_default to less than a packet: EMSGSIZE, then the memfd."""
    with raw(ends[0]) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ends[0].send(b"x" * 60_000)
    received = ends[1].receive()
    assert received is not None
    assert 60_000 == len(received[0])


def test_no_memory_leaves_no_descriptor(ends: tuple[Channel, Channel]) -> None:
    """RLIMIT_FSIZE makes the write to the memfd fail as a full memory would."""
    import resource
    import signal

    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            ends[0].send(b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert before == open_descriptors()
