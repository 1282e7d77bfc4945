"""``send_hostile.py SOCKET KIND``: asks as a container's root that has the socket; then prints a line and stays.

KIND: ``lingers``, with a descriptor of which the last close waits; ``looked-at``, from a root that does not answer.
"""

import os
import signal
import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from tests.support import fuse

SECONDS = 300


def lingering() -> tuple[socket.socket, list[socket.socket]]:
    """A connection with data that is not read: its close waits for that; its other side."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(1 << 16))
    except BlockingIOError:
        return one, [other]


def main() -> None:
    path, kind = sys.argv[1:]
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(path)
    request = sys.stdin.buffer.read()
    if kind == "lingers":
        one, _kept = lingering()
        socket.send_fds(client, [request], [one.fileno()] * 4)
        one.close()
        print("sent", flush=True)
        signal.pause()
        return
    place = Path("/mnt")
    with fuse.mounted(place) as device:
        server = os.fork()
        if server == 0:
            fuse.serve(device, 0)
        os.chroot(place)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        socket.send_fds(client, [request], [0, 1, 2, 0])
        print("sent", flush=True)
        signal.pause()


main()
