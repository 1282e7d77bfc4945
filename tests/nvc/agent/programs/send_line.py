"""``send_line.py TEXT``: sends it to "socket" in the working directory, and prints the first line of the answer."""

import socket
import sys

with socket.socket(socket.AF_UNIX) as one:
    one.settimeout(10)
    one.connect("socket")
    one.sendall(sys.argv[1].encode())
    one.shutdown(socket.SHUT_WR)
    with one.makefile() as lines:
        print(lines.readline(), end="")
