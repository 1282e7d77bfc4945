"""``load_modules_in_root.py LIBRARY ROOT``: loads kernel modules from within a driver root."""

import sys

sys.path.insert(0, sys.argv[1])
from nvc.base.log import open_log
from nvc.driver import kmods

log = open_log("/dev/stderr")
work = kmods._Work(kmods.KernelTree(), 1, (), log, 5.0)
kmods._in_root(sys.argv[2], work.run, open_log("/dev/stderr"), 20.0)
