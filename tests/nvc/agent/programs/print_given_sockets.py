"""The sockets of a systemd unit that this process was given: names and descriptors."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.agent.notify import Systemd

os.environ["LISTEN_PID"] = str(os.getpid())
print(Systemd(os.environ).given)
