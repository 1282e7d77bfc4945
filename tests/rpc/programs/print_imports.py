"""``print_imports.py ROOT MODULE``: what importing the module imports."""

import os  # noqa: F401 - every program has it
import sys

before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
__import__(sys.argv[2])
print(*(set(sys.modules) - before))
