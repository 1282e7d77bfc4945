"""Waits for a byte on stdin without Python's own trying again: a wait that ends early ends the program with 3."""

import ctypes
import signal
import sys

libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGCONT, lambda *_: None)
signal.signal(signal.SIGURG, lambda *_: None)
room = ctypes.create_string_buffer(8)
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.exit(libc.read(0, room, 8) != 1 and 3)
