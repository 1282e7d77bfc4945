"""``end_in_prepare.py LOG``: a service whose preparation raises; LOG gets what of this program ran at its end."""

import atexit
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from rpc.process import start
from tests.support.demo_service import SERVICE, Question, handlers


def note(text: str) -> None:
    with open(sys.argv[1], "a") as log:
        log.write(text)


def prepare() -> None:
    raise KeyboardInterrupt


atexit.register(note, "exit ")
sys.stdout.write("unflushed ")
try:
    client = start(SERVICE, handlers(), prepare=prepare)
    with contextlib.suppress(Exception):
        client.call("double", Question())
    client.close()
finally:
    note("finally ")
