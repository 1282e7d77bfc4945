"""``keep_bundle_open.py ROOT``: prints whether descriptors are open after hook.process closed what was inherited.

The second of three is that of a finder, as nvc.base.boot's bundle is.
"""

import os
import sys

sys.path.insert(0, sys.argv[1])
from hook.process import sanitise

one, bundle, other = (os.open("/dev/null", os.O_RDONLY) for _ in range(3))


class Finder:
    """Finds nothing, and reads from ``bundle``."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        return None

    def fileno(self) -> int:
        return bundle


sys.meta_path.append(Finder())
sanitise(trusted=False)
print([os.path.exists(f"/proc/self/fd/{number}") for number in (one, bundle, other)])
