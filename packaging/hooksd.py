"""Prints the hooks.d file that the package carries: what ``nvc-py runtime configure --runtime=podman`` writes.

usage: PYTHONPATH=. python packaging/hooksd.py
"""

from __future__ import annotations

from nvc.engines import hooksd, podman
from nvc.engines.files import Files
from nvc.engines.wish import Wish

# A directory that is nowhere: there is nothing to keep.
edits = podman.plan(Wish(hooks=True, hooks_dir="/nonexistent", config="/nonexistent/containers.conf"), Files()).edits
print(next(edit.after for edit in edits if edit.path == f"/nonexistent/{hooksd.FILE}"), end="")
