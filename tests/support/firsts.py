"""A tenant's first process, in a mount namespace of its own, which the tenant's other processes join."""

from __future__ import annotations

import subprocess
from typing import Self

from nvc.share.store import start_time

#: Says its pid in the namespace of the reader of /proc, and ends with its standard input.
_WAITS = ("sh", "-c", 'read -r pid rest </proc/self/stat; echo "$pid"; read -r line')


class FirstProcess:
    """``key``: what ``Supervisors.add`` takes as ``first``. Later mounts of the starter's namespace come in, too.

    pid: in a pid namespace of its own, as well. Other processes may have mount namespaces of their own then; their pids
    are not those of the processes that start them.
    """

    def __init__(self, *, pid: bool = False) -> None:
        kinds = ["--mount", "--propagation", "slave", *(["--pid", "--fork", "--kill-child"] if pid else [])]
        self._process = subprocess.Popen(
            ["unshare", *kinds, *_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        number = int(self._process.stdout.readline())
        self.key = (number, start_time(number))
        self._kinds = ("mnt", "pid") if pid else ("mnt",)

    def join(self) -> list[str]:
        """The words before a command that make it a process of the container."""
        options = {"mnt": "--mount", "pid": "--pid"}
        return ["nsenter", *(f"{options[kind]}=/proc/{self.key[0]}/ns/{kind}" for kind in self._kinds), "--"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
