"""``complain.py ROOT BLOCKED TEXT``: prints the error of a text that is no JSON. BLOCKED 1: nothing is imported."""

import sys

sys.path.insert(0, sys.argv[1])
from rpc.codec import CodecError, loads

if sys.argv[2] == "1":
    sys.meta_path.clear()
try:
    loads(sys.argv[3])
except CodecError as error:
    print(error)
