"""``hold_connections.py NUMBER``: connects to "control" so often, and says nothing until the end of its stdin."""

import resource
import socket
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[1]))]
for one in held:
    one.connect("control")
print("held", flush=True)
sys.stdin.read()
