"""What may be imported on the way to a container: modules that run for every container import nothing slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Each of these costs between a third and three times of what starting the interpreter costs.
SLOW = set(
    """json re enum dataclasses typing contextlib collections functools socket subprocess logging click pathlib tempfile
    signal shutil glob warnings traceback inspect argparse""".split()  # noqa: SIM905
)
COLD = (
    "nvc.agent",
    "nvc.cli.about",
    "nvc.cli.agent",
    "nvc.cli.seccomp",
    "nvc.driver.",
    "nvc.formats.elf",
    "nvc.formats.ldcache",
    "nvc.formats.xid",
    "nvc.sim",
    "nvc.doctor",
    "nvc.cdi.chosen",
    "nvc.cdi.files",
    "nvc.cdi.gather",
    "nvc.cdi.generate",
    "nvc.cdi.rules",
    "nvc.cdi.spec",
    "nvc.cdi.text",
    "nvc.cdi.transform",
    "nvc.cdi.validate",
    "nvc.engines",
    "nvc.cdi.gated",
    "hook.warm",
    "nvc.cli.cdi",
    "nvc.cli.config",
    "nvc.cli.ctk",
    "nvc.cli.doctor",
    "nvc.cli.groups",
    "nvc.cli.help",
    "nvc.cli.kube",
    "nvc.cli.reference",
    "nvc.cli.runtime",
    "nvc.cli.share",
    "nvc.cli.sim",
    "nvc.cli.top",
    "nvc.guard.pages",
    "nvc.guard.plan_file",
    "nvc.guard.channel",
    "nvc.guard.held",
    "nvc.guard.prober",
    "nvc.guard.supervisors",
    "nvc.kube",
    "nvc.prefork",
    "nvc.__main__",
)
HOT_EXCEPTIONS = ("nvc.driver.inventory", "nvc.driver.runtime", "nvc.driver.facts")


def hot_modules() -> list[str]:
    names = []
    for package in ("rpc", "nvc", "hook"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if name in HOT_EXCEPTIONS or not name.startswith(COLD):
                names.append(name)
    return names


def test_the_list_of_hot_modules_is_not_empty() -> None:
    assert {"rpc.codec", "nvc.container.plan", "nvc.container.apply", "nvc.linux.syscalls"} <= set(hot_modules())


@pytest.mark.parametrize("module", hot_modules())
def test_hot_module_imports_nothing_slow(module: str) -> None:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}; print(*sys.modules)"

    output = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True, timeout=20
    ).stdout

    assert [] == sorted(SLOW & set(output.split()))
