"""``ask_gpu.py ROOT``: prints the name of the first GPU of a driver root, and the status of the asking process."""

import sys

from nvc.base.log import Log
from nvc.driver.service import start
from nvc.model import Host

with start(Host(root=sys.argv[1]), uid=None, gid=None, deadline=9, log=Log.none()) as client:
    print(client.gpu(0).name)
    with open(f"/proc/{client.pid}/status") as status:
        print(status.read())
