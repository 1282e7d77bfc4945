"""``print_imports.py ROOT``: the modules that the hook imports for a container whose state is on stdin."""

import sys

before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
from hook.__main__ import main  # noqa: E402

assert main(["prestart"]) == 0
print(*sorted(set(sys.modules) - before))
