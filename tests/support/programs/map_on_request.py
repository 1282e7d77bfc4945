"""``map_on_request.py FILE``: for every line of stdin maps the file shared, not from its beginning: announced."""

import mmap
import sys

with open(sys.argv[1], "r+b") as file:
    for _ in sys.stdin:
        mmap.mmap(file.fileno(), 4096, offset=4096).close()
        print("mapped", flush=True)
