"""``load_inventory.py LIBRARY ROOT SYSTEM CACHE NAME=VALUE...``: loads the cached inventory; prints loaded modules."""

import sys

sys.path.insert(0, sys.argv[1])
from nvc.base.log import Log
from nvc.driver.inventory import load
from nvc.model import DriverOptions, Host

root, system, cache, *variables = sys.argv[2:]
environ = dict(word.split("=", 1) for word in variables)
assert load(Host(root=root, system=system), DriverOptions(), None, cache=cache, log=Log.none(), environ=environ)
print(*sys.modules)
