"""The Debian package on a machine of its own: installed, used, upgraded, removed, purged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import commands

from tests.support import userland
from tests.support.overlaid import Machine, overlaid

pytestmark = pytest.mark.root

_REFRESH = "/usr/lib/nvc-py/cdi-refresh"
_SPEC = "run/cdi/nvidia.yaml"
_DEFAULT = "/etc/default/nvc-cdi-refresh"
_UNITS = (".path", ".service", ".timer", "-mig.timer")


def install(machine: Machine, deb: Path) -> str:
    # Without --force-depends: what Depends names is installed here, and is all that the commands need.
    return machine.run("dpkg", "-i", "--force-confold", machine.put(deb))


def simulate(machine: Machine, name: str = "h200") -> None:
    """Give the machine a simulated GPU, for the refresh of the spec too."""
    machine.run("nvc-py", "sim", "create", "/tmp/machine", "--machine", name)
    with open(machine.root / _DEFAULT[1:], "a") as settings:
        settings.write('NVC_OPTIONS="--sim /tmp/machine"\n')


def test_nothing_stays_after_installing_using_upgrading_removing_and_purging(
    machine: Machine, deb: Path, next_deb: Path
) -> None:
    assert set() == machine.changes()
    install(machine, deb)
    assert {"/usr/bin/nvc-py", "/usr/bin/nvc-hook", _DEFAULT} < machine.changes()
    assert "" == machine.run("dpkg", "--verify", "nvc-py")
    assert "" == machine.run("dpkg", "--audit")
    simulate(machine)
    assert "/dev/nvidia0" in machine.run("nvc-py", "--sim", "/tmp/machine", "list")
    assert "H200" in machine.run("nvidia-container-cli", "--sim", "/tmp/machine", "info")
    machine.run(_REFRESH)

    install(machine, next_deb)
    assert "1.1" in machine.run("dpkg-query", "-W", "nvc-py")
    assert "--sim /tmp/machine" in (machine.root / _DEFAULT[1:]).read_text()
    assert not (machine.root / "usr/lib/nvc-py/nvc/cli/compat/dryrun.py").exists()
    assert not list((machine.root / "usr/lib/nvc-py/nvc/cli/__pycache__").glob("dryrun.*"))
    assert "/dev/nvidia0" in machine.run("nvc-py", "--sim", "/tmp/machine", "list")

    machine.run("dpkg", "-r", "nvc-py")
    kept = {path for path in machine.changes() if "systemd" not in path}
    assert {_DEFAULT, f"{_DEFAULT}.dpkg-dist"} == kept
    (machine.root / "run/nvc").mkdir(exist_ok=True)
    (machine.root / "var/lib/nvc").mkdir(exist_ok=True)
    (machine.root / "var/lib/nvc/usage.jsonl").touch()
    machine.run("dpkg", "-P", "nvc-py")
    assert set() == machine.changes()
    assert not (machine.root / "run/nvc").exists()
    assert not (machine.root / _SPEC).exists()


@pytest.mark.timeout(300)
def test_the_same_file_serves_debian_13(deb: Path) -> None:
    with overlaid(userland.place()) as machine:
        # Its network is this machine's; what Depends names comes from its own archive.
        machine.run("apt-get", "update", "-qq")
        machine.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", machine.put(deb))
        before = machine.changes()
        assert "cpython 3.13" in machine.run("nvc-py", "--version")
        simulate(machine)
        assert "/dev/nvidia0" in machine.run("nvc-py", "--sim", "/tmp/machine", "list")
        assert "written" in machine.run(_REFRESH)
        machine.run("dpkg", "-P", "nvc-py")
        assert {path for path in before if "nvc" in path}
        assert not {path for path in machine.changes() if "nvc" in path}


def test_it_can_be_installed_again_after_a_removal(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    machine.run("dpkg", "-r", "nvc-py")
    install(machine, deb)
    assert "lib-version" in machine.run("nvc-py", "--version")


def test_every_command_starts_from_modules_compiled_on_the_target(machine: Machine, deb: Path) -> None:
    listing = subprocess.run(["dpkg-deb", "-c", str(deb)], capture_output=True, text=True, check=True).stdout
    assert "./usr/share/nvc-py/slurm/nvc-slurm-run\n" in listing
    assert not [line for line in listing.splitlines() if line.endswith((".pyc", ".bundle"))]
    install(machine, deb)
    library = machine.root / "usr/lib/nvc-py"
    assert (library / "nvc/modules.bundle").exists()
    assert list((library / "hook/__pycache__").glob("arguments.cpython-*.pyc"))
    for name, module in commands():
        option = "--version" if module != "hook.runtime.__main__" else "features"
        # The runtime becomes the real one: any answer that is not an import error will do.
        output = machine.run("sh", "-c", f"{name} {option} 2>&1 || true")
        assert "Traceback" not in output and "rror: No module" not in output, f"{name}: {output}"
        assert "compiled" not in output and output, name


def test_the_modules_are_compiled_again_for_another_interpreter(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    bundle = machine.root / "usr/lib/nvc-py/nvc/modules.bundle"
    bundle.unlink()
    machine.run("/usr/share/python3/runtime.d/nvc-py.rtupdate", "rtupdate", "python3.11", "python3.13")
    assert bundle.exists()


def test_units_are_enabled_and_stay_as_the_administrator_wants(machine: Machine, deb: Path, next_deb: Path) -> None:
    install(machine, deb)
    for kind in _UNITS:
        assert "enabled" in machine.run("systemctl", "is-enabled", f"nvc-cdi-refresh{kind}")
    problems = machine.run("systemd-analyze", "verify", *(f"nvc-cdi-refresh{kind}" for kind in _UNITS))
    assert "nvc-cdi" not in problems
    machine.run("systemctl", "disable", "nvc-cdi-refresh.timer")
    install(machine, next_deb)
    assert "disabled" in machine.run("systemctl", "is-enabled", "nvc-cdi-refresh.timer", code=1)
    assert "enabled" in machine.run("systemctl", "is-enabled", "nvc-cdi-refresh.path")


def test_the_agent_is_installed_and_the_administrator_enables_it(machine: Machine, deb: Path, next_deb: Path) -> None:
    install(machine, deb)
    units = ("nvc-agent.service", "nvc-agent.socket")
    assert not [name for name in machine.run("systemd-analyze", "verify", *units).splitlines() if "nvc-agent" in name]
    for unit in units:
        assert "disabled" in machine.run("systemctl", "is-enabled", unit, code=1)
    machine.run("systemctl", "enable", "nvc-agent")
    install(machine, next_deb)
    for unit in units:
        assert "enabled" in machine.run("systemctl", "is-enabled", unit)
    machine.run("dpkg", "--purge", "nvc-py")
    assert not list((machine.root / "etc/systemd/system").rglob("nvc-agent*"))


def test_no_engine_is_changed_by_installing(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    assert not (machine.root / "usr/share/containers/oci/hooks.d/nvc.json").exists()
    shown = json.loads((machine.root / "usr/share/nvc-py/hooks.d/nvc.json").read_text())
    machine.run("nvc-py", "runtime", "configure", "--runtime=podman")
    assert shown == json.loads((machine.root / "etc/containers/oci/hooks.d/nvc.json").read_text())


def test_removal_takes_it_out_of_the_engines(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    daemon = machine.root / "etc/docker/daemon.json"
    daemon.parent.mkdir(parents=True, exist_ok=True)
    daemon.write_text('{"debug": true}\n')
    machine.run("nvc-py", "runtime", "configure", "--runtime=podman")
    machine.run("nvc-py", "runtime", "configure", "--runtime=docker", "--set-as-default")
    assert "nvc-runtime" in daemon.read_text()
    machine.run("dpkg", "-r", "nvc-py")
    assert not (machine.root / "etc/containers/oci/hooks.d/nvc.json").exists()
    assert {"debug": True} == json.loads(daemon.read_text())


def test_removal_leaves_what_names_programs_of_another_directory(machine: Machine, deb: Path) -> None:
    """Attack (B): what an installation below /usr/local or /opt had set up went with the package."""
    install(machine, deb)
    hook = "containerEdits:\n    hooks:\n        - hookName: createContainer\n          path: {}\n"
    files = {
        "etc/docker/daemon.json": '{"runtimes": {"nvidia": {"path": "/usr/local/bin/nvc-runtime"}}}\n',
        "etc/containerd/config.toml": (
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n"
            'BinaryName = "/opt/nvc/bin/nvc-runtime"\n'
        ),
        "etc/crio/crio.conf.d/99-nvidia.toml": (
            '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
            'runtime_path = "/opt/nvc/bin/nvc-runtime"\n'
        ),
        "etc/containers/oci/hooks.d/nvc.json": '{"version": "1.0.0", "hook": {"path": "/usr/local/bin/nvc-hook"}}',
        "run/cdi/nvidia.yaml": hook.format("/usr/local/bin/nvc-cdi-hook"),
        "etc/cdi/other.yaml": hook.format("/opt/usr/bin/nvidia-cdi-hook"),
    }
    for name, text in files.items():
        (machine.root / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / name).write_text(text)
    (machine.root / "etc/slurm").mkdir(exist_ok=True)
    (machine.root / "etc/slurm/oci.conf").write_text('RunTimeRun="nvc-runtime run"\n')
    said = machine.run("dpkg", "-r", "nvc-py")

    assert {name: (machine.root / name).read_text() for name in files} == files
    assert "oci.conf starts nvc-runtime" in said


def test_an_engine_file_with_mistakes_does_not_stop_the_removal(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    daemon = machine.root / "etc/docker/daemon.json"
    daemon.parent.mkdir(parents=True, exist_ok=True)
    daemon.write_text('{"debug": tru')
    assert "configuration of docker by hand" in machine.run("dpkg", "-r", "nvc-py")
    assert '{"debug": tru' == daemon.read_text()


def test_settings_that_are_no_shell_script_do_not_stop_the_removal(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    (machine.root / _DEFAULT[1:]).write_text('NVC_OPTIONS="--root /run\n')

    assert "CDI specification away by hand" in machine.run("dpkg", "-r", "nvc-py")


def test_removal_says_which_containers_wait(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    assert "guard" not in machine.run("dpkg", "-r", "nvc-py")
    install(machine, deb)
    (machine.root / "run/nvc/agent/tenants").mkdir(parents=True)
    (machine.root / "run/nvc/agent/tenants/1.json").write_text("{}")

    assert "containers under the guard still run" in machine.run("dpkg", "-r", "nvc-py")


def test_the_refresh_writes_what_changed_and_nothing_else(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    simulate(machine)
    assert "written" in machine.run(_REFRESH)
    spec = machine.root / _SPEC
    assert "/usr/bin/nvc-cdi-hook" in spec.read_text()
    before = spec.stat()
    assert "written" not in machine.run(_REFRESH)
    assert (before.st_ino, before.st_mtime_ns) == (spec.stat().st_ino, spec.stat().st_mtime_ns)

    own, other = "/etc/cdi/nvidia.yaml", "/etc/cdi/other.yaml"
    machine.run("nvc-py", "--sim", "/tmp/machine", "cdi", "generate", "--output", own)
    (machine.root / other[1:]).write_text("mounts: /nonexistent of another program")
    spec.write_text("")
    assert f"{own}: " not in machine.run(_REFRESH), "nothing that it names is gone yet"
    machine.run("nvc-py", "sim", "create", "/tmp/machine", "--machine", "a100-mig-dev", "--force")
    told = machine.run(_REFRESH)
    assert "written" in told
    assert f"{own}: names files that are gone" in told, told
    assert other not in told
    assert "0:0" in spec.read_text()
    assert own not in machine.run(_REFRESH), "once, when something changed"
    assert [spec.name] == [file.name for file in spec.parent.iterdir()]


@pytest.mark.parametrize(("option", "ending"), [("--share", "yaml"), ("--share-fixed=mem=25%", "json")])
def test_the_refresh_does_not_replace_shares_by_whole_gpus(
    machine: Machine, deb: Path, option: str, ending: str
) -> None:
    """A spec that root had made with --share was replaced by one without, and containers had whole GPUs."""
    install(machine, deb)
    simulate(machine)
    output = f"/run/cdi/nvidia.{ending}"
    with open(machine.root / _DEFAULT[1:], "a") as settings:
        settings.write(f"NVC_CDI_OUTPUT={output}\n")
    machine.run("nvc-py", "--sim", "/tmp/machine", "cdi", "generate", option, "--output", output)
    spec = machine.root / output[1:]
    before = spec.read_text()
    machine.run("nvc-py", "sim", "create", "/tmp/machine", "--machine", "a100-mig-dev", "--force")
    said = machine.run(_REFRESH, code=1)
    assert f"{output}: left as it is" in said and "--share" in said
    assert before == spec.read_text()

    with open(machine.root / _DEFAULT[1:], "a") as settings:
        settings.write(f'NVC_CDI_OPTIONS="{option}"\n')
    assert "written" in machine.run(_REFRESH)
    assert before != spec.read_text() and "share" in spec.read_text()


def test_a_umask_of_roots_keeps_nobody_from_using_it(machine: Machine, deb: Path) -> None:
    """Containers of other users read the specification, and their hooks the modules."""
    machine.run("sh", "-c", f"umask 077; dpkg -i {machine.put(deb)}")
    machine.run("sh", "-c", "umask 077; /usr/share/python3/runtime.d/nvc-py.rtupdate rtupdate python3.11 python3.13")
    simulate(machine)
    machine.run("sh", "-c", f"umask 077; rm -rf /run/cdi; {_REFRESH}")

    library = machine.root / "usr/lib/nvc-py"
    spec = machine.root / _SPEC
    for path in (spec.parent, spec, *library.rglob("*")):
        assert path.stat().st_mode & 0o004, path


def test_the_refresh_keeps_the_spec_when_it_fails_and_takes_it_away_with_the_driver(
    machine: Machine, deb: Path
) -> None:
    install(machine, deb)
    settings = machine.root / _DEFAULT[1:]
    usual = settings.read_text()
    simulate(machine)
    machine.run(_REFRESH)
    spec = machine.root / _SPEC
    before = spec.read_text()
    settings.write_text(f'{usual}NVC_OPTIONS="--sim /nowhere"\n')
    assert "/nowhere" in machine.run(_REFRESH, code=1)
    assert before == spec.read_text()

    settings.write_text(usual)
    if Path("/proc/driver/nvidia/version").exists():
        return  # this machine's own driver is seen there
    assert "no NVIDIA driver" in machine.run(_REFRESH)
    assert not spec.exists()
    spec.write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    machine.run(_REFRESH)
    assert spec.exists(), "another program's spec"


def test_it_takes_the_place_of_nvidias_packages(machine: Machine, deb: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "DEBIAN").mkdir(parents=True)
    (other / "DEBIAN/control").write_text(
        "Package: nvidia-container-toolkit\nVersion: 1.17\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
    )
    (other / "usr/bin").mkdir(parents=True)
    (other / "usr/bin/nvidia-container-runtime-hook").write_text("#!/bin/sh\nexit 1\n")
    file = tmp_path / "other.deb"
    subprocess.run(["dpkg-deb", "-b", str(other), str(file)], check=True, capture_output=True)
    machine.run("dpkg", "-i", machine.put(file))
    install(machine, deb)
    assert "nvc-py" in machine.run("nvidia-container-runtime-hook", "--version")
    status = machine.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "nvidia-container-toolkit")
    assert not status.startswith("ii")


def test_completions_are_where_the_shells_look(machine: Machine, deb: Path) -> None:
    install(machine, deb)
    places = {
        "bash": "/usr/share/bash-completion/completions/{}",
        "zsh": "/usr/share/zsh/vendor-completions/_{}",
        "fish": "/usr/share/fish/vendor_completions.d/{}.fish",
    }
    for place in places.values():
        for program in ("nvc-py", "nvidia-container-cli"):
            assert program in (machine.root / place.format(program)[1:]).read_text()
    ask = (
        f". {places['bash'].format('nvc-py')}; COMP_WORDS=(nvc-py conf); COMP_CWORD=1; _nvc_py_completion nvc-py; "
        "echo ${COMPREPLY[@]}"
    )
    assert "configure" in machine.run("bash", "-c", ask)
