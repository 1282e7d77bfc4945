"""``activated.py WORD...``: nvc-py as a systemd unit starts it: with the pid that the descriptors are for."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from nvc.cli.main import main

os.environ["LISTEN_PID"] = str(os.getpid())
sys.exit(main(sys.argv[1:], "nvc-py"))
