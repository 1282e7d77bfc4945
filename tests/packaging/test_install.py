"""make install and make uninstall: everything below PREFIX and DESTDIR, readable for every user."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import CHECKOUT, commands

SCRIPTS = CHECKOUT / "tools"


def script(
    name: str, prefix: str, destdir: str = "", cwd: Path = CHECKOUT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run tools/NAME, where it can be without a network: nothing is fetched."""
    settings = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "PREFIX": prefix, "DESTDIR": destdir}
    alone = ["unshare", "--net"] if os.geteuid() == 0 else []
    command = [*alone, "sh", "-c", 'umask 077 && exec "$0"', str(SCRIPTS / name)]
    settings |= environment
    return subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=100, check=False)


def install(prefix: str, destdir: str = "", cwd: Path = CHECKOUT) -> None:
    done = script("install", prefix, destdir, cwd)
    assert 0 == done.returncode, done.stdout + done.stderr


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix that was installed into, by root with a umask of its own."""
    made = tmp_path_factory.mktemp("prefix") / "opt"
    install(str(made))
    return made


def test_every_user_may_read_and_start_what_root_installed(prefix: Path) -> None:
    """Also with root's umask 077."""
    for path in (prefix, *prefix.rglob("*")):
        mode = path.stat().st_mode
        wanted = 0o005 if path.is_dir() or mode & stat.S_IXUSR else 0o004
        assert mode & wanted == wanted, path


def test_the_commands_work(prefix: Path) -> None:
    done = subprocess.run([prefix / "bin/nvc-py", "--version"], capture_output=True, text=True, timeout=30, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert "lib-version" in done.stdout


#: Prints the help of every command and sub-command of every program but nvc-runtime, whose help is the real runtime's.
HELP = """
import sys
library, names = sys.argv[1], sys.argv[2:]
sys.path += [library, library + "/deps"]
if "--bundle" in names:
    from nvc.base.boot import Finder
    sys.meta_path.insert(0, Finder(library))
import click
from hook import __main__ as hook, cdi
from nvc.cli.help import program
from nvc.cli.main import main

def paths(command, above, context):
    yield above
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, name)
        yield from paths(below, [*above, name], click.Context(below, info_name=name, parent=context))

for name in ("nvc-py", "nvidia-container-cli"):
    tree = program(name)
    for path in paths(tree, [], click.Context(tree, info_name=name)):
        if path == ["cdi-hook"]:
            continue  # becomes nvc-cdi-hook, which is below
        print("####", name, *path, flush=True)
        assert main([*path, "--help"], name) == 0
        sys.stdout.flush()
for name in ("nvc-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit"):
    print("####", name, flush=True)
    hook.serve(["--help"], name, "")
print("#### nvc-cdi-hook", flush=True)
cdi.serve(["--help"])
"""


def helps(library: Path, *words: str) -> dict[str, str]:
    """The words of a command line -> what it shows."""
    command = [sys.executable, "-I", "-c", HELP, str(library), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    parts = (part.partition("\n") for part in done.stdout.split("#### ")[1:])
    return {name: text for name, _, text in parts}


def test_every_command_shows_the_help_of_the_source(prefix: Path) -> None:
    shipped, source = helps(prefix / "lib/nvc-py", "--bundle"), helps(CHECKOUT)

    assert shipped == source
    assert {"nvc-py share set", "nvc-py sim create", "nvc-py runtime configure", "nvidia-container-cli info"} <= set(
        source
    )
    # The line between usage and options is what a command is for.
    undescribed = [name for name, text in source.items() if not re.search(r"\A.*\n\n {0,2}[A-Z]", text)]
    assert [] == undescribed


def test_a_started_command_shows_its_help(prefix: Path) -> None:
    words = ["share", "set", "--help"]
    done = subprocess.run([prefix / "bin/nvc-py", *words], capture_output=True, text=True, timeout=30, check=True)

    assert helps(CHECKOUT)["nvc-py share set"] == done.stdout


def test_what_the_commands_require_is_there(prefix: Path) -> None:
    """It was asked of PyPI, although .venv has it: `make install` failed on a host without internet."""
    deps = prefix / "lib/nvc-py/deps"
    assert not (deps / "bin").exists() and not list(deps.rglob("pytest*"))
    # With what they require themselves.
    load = "import sys; sys.path.append(sys.argv[1]); import click, yaml, tomlkit, rich.syntax; print(yaml.__file__)"
    done = subprocess.run([sys.executable, "-IS", "-c", load, deps], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(deps))


def test_all_that_belongs_to_it_is_there(prefix: Path) -> None:
    found = files(prefix)

    assert {f"bin/{name}" for name, _ in commands()} <= found
    pages = {f"share/man/man{section}/{name}.{section}" for name, _ in commands() for section in "18"}
    assert len(commands()) == len(pages & found)
    for program in ("nvc-py", "nvidia-container-cli"):
        assert {
            f"share/bash-completion/completions/{program}",
            f"share/zsh/site-functions/_{program}",
            f"share/fish/vendor_completions.d/{program}.fish",
        } <= found
    units = {f"lib/systemd/system/{path.name}" for path in (CHECKOUT / "packaging/systemd").glob("nvc-*.[pst]*")}
    assert 7 == len(units) == len(units & found)
    assert {f"share/doc/nvc-py/{name}" for name in ("LICENSE", "README.md", "docs/user/installing.md")} <= found
    examples = ("hooks.d/nvc.json", "grafana/nvc-py.json", "slurm/nvc-slurm-run", "nvc-cdi-refresh.default")
    assert {f"share/nvc-py/{name}" for name in (*examples, "config.toml.sample")} <= found


def test_what_names_a_program_names_one_of_this_prefix(prefix: Path) -> None:
    named = {json.loads((prefix / "share/nvc-py/hooks.d/nvc.json").read_text())["hook"]["path"]}
    for unit in (prefix / "lib/systemd/system").iterdir():
        named |= set(re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE)) - {"/bin/systemctl"}
    named |= set(re.findall(r"\S+/nvc-py(?= \$NVC_OPTIONS)", (prefix / "lib/nvc-py/cdi-refresh").read_text()))

    assert {"nvc-hook", "nvc-py", "cdi-refresh"} == {os.path.basename(path) for path in named}
    for path in named:
        assert path.startswith(f"{prefix}/") and os.access(path, os.X_OK), path
    assert (prefix / "share/nvc-py/slurm/nvc-slurm-run").read_text().startswith(f"#!{sys.executable} -IS\n")
    assert f"{prefix}/share/doc/nvc-py" in (prefix / "share/man/man1/nvc-py.1").read_text().replace("\\-", "-")


def test_a_relative_destdir_is_that_of_who_installs(tmp_path: Path) -> None:
    """Native files landed below native/, and the rest in the checkout."""
    install("/opt/nvc", "stage", cwd=tmp_path)

    stage = tmp_path / "stage/opt/nvc"
    for name in ("nvc-monitor", "nvc-supervisor", "nvc-prober"):
        assert os.access(stage / "lib/nvc-py/nvc/linux" / name, os.X_OK)
    assert not (CHECKOUT / "stage").exists() and not (CHECKOUT / "native/stage").exists()
    place = str(tmp_path).encode()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert place not in path.read_bytes(), f"{path} names DESTDIR"
    assert ["opt"] == os.listdir(tmp_path / "stage")

    assert 0 == script("uninstall", "/opt/nvc", "stage", cwd=tmp_path).returncode
    assert set() == files(tmp_path)


def test_uninstall_and_install_again(tmp_path: Path) -> None:
    root = tmp_path / "usr"
    (root / "bin").mkdir(parents=True)
    (root / "bin/other").write_text("another program's")
    install(str(root))
    engines = tmp_path / "etc"
    engines.mkdir()
    # What an older version had, and this one has not.
    with open(root / "lib/nvc-py/files", "a") as listed:
        listed.write("share/man/man1/old.1\n")
    (root / "share/man/man1/old.1").write_text("")
    install(str(root))
    assert not (root / "share/man/man1/old.1").exists()

    (engines / "daemon.json").write_text(json.dumps({"runtimes": {"nvidia": {"path": f"{root}/bin/nvc-runtime"}}}))
    done = script("uninstall", str(root), ENGINES=str(engines))
    assert 1 == done.returncode
    assert f"{engines}/daemon.json" in done.stderr and "runtime configure" in done.stderr
    assert (root / "bin/nvc-py").exists()

    # A link to a file elsewhere, and CRI-O's drop-in of another ending, did not count.
    (engines / "daemon.json").rename(tmp_path / "kept.json")
    (engines / "daemon.json").symlink_to(tmp_path / "kept.json")
    assert f"{engines}/daemon.json" in script("uninstall", str(root), ENGINES=str(engines)).stderr
    (engines / "daemon.json").unlink()
    (engines / "crio.conf.d").mkdir()
    (engines / "crio.conf.d/99-nvidia").write_text(f'runtime_path = "{root}/bin/nvc-runtime"\n')
    assert f"{engines}/crio.conf.d/99-nvidia" in script("uninstall", str(root), ENGINES=str(engines)).stderr
    assert (root / "bin/nvc-py").exists()

    (engines / "crio.conf.d/99-nvidia").unlink()
    done = script("uninstall", str(root), ENGINES=str(engines))
    assert (0, "") == (done.returncode, done.stderr)
    assert {"bin/other"} == files(root)
    assert not (root / "lib/nvc-py").exists() and not (root / "share/nvc-py").exists()

    done = script("uninstall", str(root), ENGINES=str(engines))
    assert (0, f"uninstall: nothing of nvc-py is in {root}\n") == (done.returncode, done.stderr)


def test_an_installation_that_fails_leaves_the_old_one(prefix: Path) -> None:
    """Everything was taken away before it was known whether the dependencies can be had."""
    before = files(prefix)

    done = script("install", str(prefix), REQUIREMENTS="nothing-here>=1")

    assert 1 == done.returncode
    assert "could not install the dependencies" in done.stderr
    assert before == files(prefix)
    assert ["nvc-py", "systemd", "udev"] == sorted(os.listdir(prefix / "lib"))


def cluster_check(prefix: Path, kubeconfig: Path) -> tuple[int, str]:
    """Exit code and messages of the command that looks at a cluster."""
    command = [prefix / "bin/nvc-py", "kube", "check", "--only=cluster", f"--kubeconfig={kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_the_extra_for_kubernetes_is_installed_when_it_is_asked_for(prefix: Path, tmp_path: Path) -> None:
    """No installation had it but a wheel's, and the remedy was a pip install of a name that no registry has from us."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    code, told = cluster_check(prefix, kubeconfig)
    assert 1 == code and "make install EXTRAS=kube;" in told and "apt install python3-grpcio" in told, told

    done = script("install", str(tmp_path / "with"), EXTRAS="kube")
    assert 0 == done.returncode, done.stdout + done.stderr
    code, told = cluster_check(tmp_path / "with", kubeconfig)
    assert 1 == code and "kubeconfig: Invalid kube-config file" in told and "module" not in told, told

    # An upgrade took them away, without a word.
    for extras, has in (({}, True), ({"EXTRAS": "none"}, False), ({}, False)):
        done = script("install", str(tmp_path / "with"), **extras)
        assert 0 == done.returncode, done.stdout + done.stderr
        assert has == ("EXTRAS=kube is kept from the installation before; EXTRAS=none leaves it out" in done.stdout)
        assert has != ("make install EXTRAS=kube;" in cluster_check(tmp_path / "with", kubeconfig)[1])

    done = script("install", str(tmp_path / "not"), EXTRAS="kub")
    assert 1 == done.returncode and "setup.cfg has no extra kub;" in done.stderr


@pytest.mark.parametrize("prefix", ["usr", "", "/opt/a b", "/opt/$(x)", "/opt/a|b", "/opt/a\nb"])
def test_a_prefix_that_cannot_be_is_refused(prefix: str, tmp_path: Path) -> None:
    done = script("install", prefix, str(tmp_path))

    assert 2 == done.returncode
    assert "PREFIX must" in done.stderr
    assert [] == os.listdir(tmp_path)
