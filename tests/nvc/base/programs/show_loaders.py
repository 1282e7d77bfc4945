"""``show_loaders.py LIBRARY``: starts as an installed command does; prints where modules came from."""

import sys

sys.path.append(sys.argv[1])
from nvc.base import boot


class Shown:
    """Stands for a command's module."""

    @staticmethod
    def run() -> int:
        import nvc.base.record
        import nvc.linux
        import nvc.sim.create  # noqa: F401

        for name in ("nvc.base.record", "nvc.linux", "nvc.sim.create"):
            module = sys.modules[name]
            print(name, type(module.__loader__).__name__, module.__file__)
        return 0


sys.modules["shown"] = Shown
boot.start(sys.argv[1], "shown")
