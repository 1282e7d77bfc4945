"""What the packages are made from: the scripts, the table of dependencies, the list of commands."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import debian
import pytest
from commands import CHECKOUT, commands, own_names

from nvc.linux import rights


def shell_scripts() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout
    files = [CHECKOUT / name for name in tracked.splitlines()] or list(CHECKOUT.glob("packaging/**/*"))
    return [file for file in files if file.is_file() and re.match(rb"#!\S*/(ba)?sh\b", file.read_bytes()[:30])]


def test_shell_scripts_are_clean() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here")
    scripts = shell_scripts()
    assert CHECKOUT / "packaging/debian/postinst" in scripts
    done = subprocess.run(
        ["shellcheck", "-x", "-S", "warning", *map(str, scripts)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "" == done.stdout


@pytest.mark.root
def test_tests_meet_no_agent_of_the_machines(tmp_path: Path) -> None:
    """Commands that were tested asked it, and failed: it was of another version."""
    text = (CHECKOUT / "Makefile").read_text()
    assert {"tools/alone"} == set(re.findall(r"root,system\) (\S+) ?\$\(VENV\)/pytest -n", text))
    look = 'test -S /run/nvc/agent/run && tools/alone sh -c "ls -A /run/nvc && touch /run/nvc/mine" && ls -A /run/nvc'
    make = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/run/nvc/agent/run')"
    there = f'mount -t tmpfs tmpfs /run && mkdir -p /run/nvc/agent && {sys.executable} -c "{make}" && {look}'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", there]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (0, "agent\n", "") == (done.returncode, done.stdout, done.stderr)


def test_every_requirement_has_its_debian_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    assert len(setup["options"]["install_requires"].split()) == len(debian.requirements())
    assert set(debian.PACKAGES) == {name for name, _ in debian.requirements()}
    kube = debian.requirements("options.extras_require", "kube")
    assert kube and set(debian.KUBE_PACKAGES) == {name for name, _ in kube}
    assert set(debian.KUBE_PACKAGES.values()) <= set(
        re.findall(r"[\w-]+", debian.control(CHECKOUT / "docs", "1", "amd64"))
    )


def test_the_refresh_may_open_the_gpus_nodes() -> None:
    unit = (CHECKOUT / "packaging/systemd/nvc-cdi-refresh.service").read_text()
    # DeviceAllow= and what implies it would shut the GPUs' nodes out.
    assert not re.search(r"^(Device|ProtectClock|PrivateDevices)", unit, re.MULTILINE)


def test_units_start_what_every_machine_has() -> None:
    """/bin/kill is procps', which a minimal Debian has not: a reload failed there."""
    lines = [
        line.partition("=")[2].lstrip("-@:+!")
        for unit in sorted((CHECKOUT / "packaging/systemd").glob("nvc-*"))
        for line in unit.read_text().splitlines()
        if re.match(r"Exec\w+=", line)
    ]
    programs = {shlex.split(line)[0] for line in lines}

    assert programs == {"/usr/bin/nvc-py", "/usr/lib/nvc-py/cdi-refresh", "/bin/sh", "/bin/systemctl"}


def test_a_reload_is_a_signal_to_the_agent() -> None:
    unit = (CHECKOUT / "packaging/systemd/nvc-agent.service").read_text()
    (line,) = re.findall(r"^ExecReload=(.*)$", unit, re.MULTILINE)
    # Not the signal's usual end, which tests under nohup do not have.
    waits = "import signal; signal.signal(signal.SIGHUP, lambda *_: exit(7)); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        # systemd puts the number in before it starts the command.
        words = [word.replace("$MAINPID", str(agent.pid)) for word in shlex.split(line)]
        subprocess.run(words, check=True, env={"PATH": "/nonexistent"}, timeout=20)
        assert agent.wait(20) == 7


#: What the agent does -> the directives that would keep it from that.
HINDERED_BY = {
    "opens the GPUs' nodes": ("DeviceAllow", "DevicePolicy", "PrivateDevices", "ProtectClock"),
    "reads containers' processes in /proc": ("ProtectProc", "ProcSubset", "PrivatePIDs", "PrivateUsers"),
    "pidfd_getfd, ptrace, kcmp, perf_event_open, bpf": (
        "SystemCallFilter",
        "SystemCallArchitectures",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
        "User",
        "DynamicUser",
        "ProtectKernelTunables",
    ),
    "mounts into containers": (
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateMounts",
        "MountFlags",
        "ReadOnlyPaths",
        "TemporaryFileSystem",
        "InaccessiblePaths",
        "BindPaths",
        "RootDirectory",
        "RestrictNamespaces",
        "ProtectKernelLogs",
        "ProtectHostname",
    ),
    "writes containers' device cgroups": ("ProtectControlGroups", "PrivateNetwork", "RestrictFileSystems"),
    "loads the driver's modules": ("ProtectKernelModules",),
    "maps the driver's code": ("MemoryDenyWriteExecute",),
}


def test_the_agents_unit_takes_nothing_that_the_agent_needs() -> None:
    unit = (CHECKOUT / "packaging/systemd/nvc-agent.service").read_text()
    said = set(re.findall(r"^(\w+)=", unit, re.MULTILINE))
    assert {} == {what: said & set(names) for what, names in HINDERED_BY.items() if said & set(names)}
    # What outlives it: the keeper in its group, the descriptors in the store. And systemd usually stops a service of
    # which the kernel ended one process for memory.
    for line in ("KillMode=process", "Restart=always", "OOMPolicy=continue"):
        assert f"\n{line}\n" in unit, line
    assert "\nOOMScoreAdjust=-" in unit


def test_the_refresh_has_the_rights_of_its_helpers_and_no_more() -> None:
    """By systemd-analyze's measure, 10 the worst; it was 8.8. The agent's: docs/reference/security-rules.md."""
    unit = CHECKOUT / "packaging/systemd/nvc-cdi-refresh.service"
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit.read_text(), re.MULTILINE)
    kept = {getattr(rights, word) for word in line.split()}
    # Phases of a helper that asks NVML, and of loading modules; those of configure are not needed.
    assert kept >= {one for phase in ("init", "init_kmods") for one in rights.of_phase(phase)} | rights.BOUNDING
    assert not kept & {rights.CAP_SYS_ADMIN, rights.CAP_SYS_PTRACE, rights.CAP_NET_ADMIN}
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if not said:
        pytest.skip("this systemd-analyze knows no --offline")
    (level,) = re.findall(r"exposure level for \S+: ([0-9.]+)", said)
    assert float(level) <= 5.0


def test_units_come_before_the_same_engines() -> None:
    """Podman's containers that start with the machine were left out of the agent's."""
    units = (CHECKOUT / "packaging/systemd").glob("nvc-*")
    before = {unit.name: re.findall(r"^Before=(.*)$", unit.read_text(), re.MULTILINE) for unit in units}
    assert 1 == len({tuple(lines) for lines in before.values() if lines}), before


def test_maintainer_scripts_can_be_executed() -> None:
    for name in ("postinst", "prerm", "postrm", "rtupdate", "compile"):
        assert os.access(CHECKOUT / "packaging/debian" / name, os.X_OK), name


def test_maintainer_scripts_start_the_packages_own_programs() -> None:
    """By PATH, one of `make install` in /usr/local takes out entries of its own, and leaves the package's."""
    for name in ("postinst", "prerm", "postrm"):
        text = (CHECKOUT / "packaging/debian" / name).read_text()
        assert not re.search(r"^ *nvc-[a-z]+ ", text, re.MULTILINE), name


def test_other_names_belong_to_our_own_commands() -> None:
    own = own_names()
    assert set(own) == {name for name, _ in commands()}
    # nvidia-ctk is no other name of one: its words are its own.
    assert {name for name in own.values() if not name.startswith("nvc-")} == {"nvidia-ctk"}
    assert "nvc-py" == own["nvidia-container-cli"]


def test_the_changelog_is_one_that_debian_reads(tmp_path: Path) -> None:
    file = tmp_path / "changelog"
    file.write_text(debian.changelog("1.0"))
    assert "nvc-py info" in file.read_text()
    if shutil.which("dpkg-parsechangelog") is None:
        pytest.skip("no dpkg-parsechangelog here")
    done = subprocess.run(
        ["dpkg-parsechangelog", "-l", str(file), "-S", "Version"], capture_output=True, text=True, check=True
    )
    assert ("1.0\n", "") == (done.stdout, done.stderr)
