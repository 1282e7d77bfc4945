"""Execute a command under a seccomp filter that refuses one system call: ``under_filter.py NUMBER COMMAND...``."""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LD, JEQ, RET = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001

number, command = int(sys.argv[1]), sys.argv[2:]
program = b"".join(
    struct.pack("=HBBI", *line) for line in ((LD, 0, 0, 0), (JEQ, 0, 1, number), (RET, 0, 0, EPERM), (RET, 0, 0, ALLOW))
)
code = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


whole = Program(len(program) // 8, ctypes.addressof(code))
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, None, 0, 0) or libc.prctl(
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0
):
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execvp(command[0], command)
