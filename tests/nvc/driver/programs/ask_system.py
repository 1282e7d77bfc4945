"""``ask_system.py ROOT``: starts the service that asks a driver root's NVML, prints its pid, and asks it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.base.log import Log
from nvc.driver.service import start
from nvc.model import Host

client = start(Host(root=sys.argv[1]), uid=None, gid=None, deadline=60, log=Log.none())
print(client.pid, flush=True)
client.system()
