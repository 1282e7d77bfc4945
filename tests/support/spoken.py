"""A program that answers lines on its standard output to lines on its standard input."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType


class Silent(AssertionError):
    """The program ended, or did not answer in time; the text has its words on stderr."""


class Spoken:
    """The running program; leaving its context kills it.

    seconds: how long ``line`` waits. Standard error is kept for what Silent says.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, seconds: float = 60) -> None:
        self.command, self.seconds, self._kept = list(command), seconds, b""
        self.process = subprocess.Popen(
            self.command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Spoken:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, whatever it does, and reap it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was told it and not read
                pipe.close()

    def tell(self, line: str) -> None:
        """Give it a line. Raises Silent when it has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Silent(self._why("ended")) from None

    def ask(self, line: str) -> str:
        """Give it a line and return the next one it prints. Raises Silent."""
        self.tell(line)
        return self.line()

    def line(self) -> str:
        """The next line, without its end. Raises Silent."""
        assert self.process.stdout is not None
        end = time.monotonic() + self.seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._kept:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Silent(self._why(f"said nothing for {self.seconds:g} s"))
                more = os.read(self.process.stdout.fileno(), 65536)
                if not more:
                    raise Silent(self._why("ended"))
                self._kept += more
        line, _, self._kept = self._kept.partition(b"\n")
        return line.decode(errors="replace")

    def until(self, word: str) -> dict[str, int]:
        """The "name value" lines up to the line ``word``. Raises Silent, also with the line that is neither."""
        found: dict[str, int] = {}
        while (line := self.line()) != word:
            name, _, value = line.rpartition(" ")
            if not name or not value.lstrip("-").isdigit():
                raise Silent(self._why(f"said {line!r}"))
            found[name] = int(value)
        return found

    def until_end(self) -> dict[str, int]:
        """All its "name value" lines. Raises Silent, also for an exit status other than 0."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            raise Silent(self._why("does not end")) from None
        if self.process.returncode != 0:
            raise Silent(self._why("failed"))
        assert self.process.stdout is not None
        lines = (self._kept + self.process.stdout.read()).decode(errors="replace").splitlines()
        return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}

    def fails_with(self, word: str) -> bool:
        """Waits for its end: did it fail, and say the word on stderr? Raises Silent when it does not end in time."""
        try:
            code = self.process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            raise Silent(self._why("does not end")) from None
        assert self.process.stderr is not None
        return code != 0 and word in self.process.stderr.read().decode(errors="replace")

    def end(self) -> int:
        """Close its input and wait; the exit status. Raises Silent when it does not end in time."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            raise Silent(self._why("does not end")) from None

    def _why(self, what: str) -> str:
        self.process.kill()
        assert self.process.stderr is not None
        words = self.process.stderr.read().decode(errors="replace").strip()
        code = self.process.wait()
        return f"{' '.join(self.command)}: {what} (exit status {code}): {words}"
