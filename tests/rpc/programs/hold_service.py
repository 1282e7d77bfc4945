"""Starts a service, prints its pid, and sleeps."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from rpc.process import start
from tests.support.demo_service import SERVICE, handlers

client = start(SERVICE, handlers())
print(client.pid, flush=True)
time.sleep(600)
