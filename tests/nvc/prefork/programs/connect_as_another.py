"""``connect_as_another.py SOCKET``: connects as user 1; prints "refused" when that is not allowed."""

import os
import socket
import sys

os.setresgid(1, 1, 1)
os.setresuid(1, 1, 1)
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    one.connect(sys.argv[1])
except PermissionError:
    print("refused")
