"""Prints the hooks.d file that the package carries: what ``nvc-py runtime configure --runtime=podman`` writes.

usage: PYTHONPATH=. python packaging/hooksd.py
"""

from __future__ import annotations

from nvc.engines import hooksd, podman
from nvc.engines.config import EngineConfig
from nvc.engines.files import Files

# A directory that does not exist: there are no settings to keep.
edits = podman.plan(
    EngineConfig(hooks=True, hooks_dir="/nonexistent", main_file="/nonexistent/containers.conf"), Files()
).edits
print(next(edit.after for edit in edits if edit.path == f"/nonexistent/{hooksd.FILE}"), end="")
