"""Prints the hooks.d file that the package carries: what ``nvc-py runtime configure --runtime=podman`` writes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvc.engines import hooksd, podman
from nvc.engines.files import Files
from nvc.engines.wish import Wish

# A directory that is nowhere: there is nothing to keep.
edits = podman.plan(Wish(hooks=True, hooks_dir="/nonexistent", config="/nonexistent/containers.conf"), Files()).edits
print(next(edit.after for edit in edits if edit.path == f"/nonexistent/{hooksd.FILE}"), end="")
