"""Loads liba.so.1, which needs libb.so.1: no library asks for an executable stack."""

import ctypes

ctypes.CDLL("liba.so.1")
with open("/proc/self/maps") as maps:
    lines = maps.readlines()
assert [line for line in lines if "libb.so.1" in line]
assert not [line for line in lines if "[stack]" in line and "x" in line.split()[1]]
