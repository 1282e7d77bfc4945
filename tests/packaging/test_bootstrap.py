"""tools/bootstrap on a machine that lacks everything: what it says while packages come, and when they do not.

apt-get, dpkg-query and the interpreter are stood in for: what they do is not what is looked at.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
APT = """#!/bin/sh
case "$*" in
*DPkg::Lock::Timeout=*) ;;
*) echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1 (apt)"; exit 100 ;;
esac
case "$*" in
*update*)
    [ ! -e lists-locked ] || {
        echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt)"
        exit 100
    }
    exit 0
    ;;
*fail*) ;;
esac
for i in $(seq 45); do echo "Get:$i http://mirror bookworm/main p$i [1 kB]"; done
[ ! -e fails ] || { echo "E: Unable to fetch some archives"; exit 100; }
for i in $(seq 45); do echo "Setting up p$i (1.0) ..."; done
"""
PYTHON = """#!/bin/sh
case "$1" in
-m) mkdir -p .venv/bin && printf '#!/bin/sh\\necho "Collecting click"\\n' >.venv/bin/pip && chmod 755 .venv/bin/pip ;;
--version) echo "Python 3.11.2" ;;
*) echo "click>=8.1" ;;
esac
"""

# The other apt ends while the script waits.
SLEEP = """#!/bin/sh
[ "$1" = 0 ] || rm -f lists-locked
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout with the script alone, and programs of a machine on which nothing is installed."""
    (tmp_path / "tools").mkdir()
    shutil.copy2(CHECKOUT / "tools/bootstrap", tmp_path / "tools")
    shutil.copy2(CHECKOUT / "setup.cfg", tmp_path)
    programs = {
        "apt-get": APT,
        "python": PYTHON,
        "dpkg-query": "#!/bin/sh\nexit 1\n",
        "id": "#!/bin/sh\necho 0\n",
        "sleep": SLEEP,
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def bootstrap(bare: Path) -> subprocess.CompletedProcess[str]:
    command = [str(bare / "tools/bootstrap"), str(bare / "bin/python"), "venv"]
    path = f"{bare}/bin:/usr/bin:/bin"
    return subprocess.run(
        command, cwd=bare, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_first_minutes_are_not_silent(bare: Path) -> None:
    done = bootstrap(bare)

    assert (done.returncode, done.stdout) == (0, "")
    said = done.stderr.splitlines()
    assert all(line.startswith("bootstrap: ") for line in said)
    assert "bootstrap: 20 packages downloaded" in said
    assert "bootstrap: 40 packages set up" in said
    assert any(line.startswith("bootstrap: making .venv") for line in said)
    assert any("Python packages" in line for line in said)
    assert len(said) < 12

    assert bootstrap(bare).stderr.count("making .venv") == 0


def test_a_failure_shows_what_apt_said(bare: Path) -> None:
    (bare / "fails").touch()

    done = bootstrap(bare)

    assert done.returncode == 1
    assert "E: Unable to fetch some archives" in done.stderr
    assert done.stderr.splitlines()[-1] == "bootstrap: apt-get failed (above)"
    assert not (bare / ".venv").exists()


def test_another_apt_is_waited_for(bare: Path) -> None:
    (bare / "lists-locked").touch()

    done = bootstrap(bare)

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("bootstrap: another apt holds the lock; trying again") == 1
    assert "bootstrap: 40 packages set up" in done.stderr


def test_a_package_whose_triggers_are_not_done_is_there(bare: Path) -> None:
    (bare / "bin/dpkg-query").write_text("#!/bin/sh\nprintf 'it '\n")

    done = bootstrap(bare)

    assert done.returncode == 0
    assert "system packages" not in done.stderr
