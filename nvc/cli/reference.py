"""Variables, files and exit codes of every program: manual pages and --help are made from these rows.

tests/contract/test_reference.py holds them to what the code reads and returns. Imported for help only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CLI, CTK, HOOK, CDI_HOOK, RUNTIME = "nvc-py", "nvidia-ctk", "nvc-hook", "nvc-cdi-hook", "nvc-runtime"
#: Widths of help's two columns.
_TERM, _TEXT = 27, 68

#: Name, programs ("nvc-py COMMAND": that command alone), meaning. The variables of containers are not among them, nor
#: those that nvidia-ctk reads in place of options, which are beside these.
ENVIRONMENT: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("NVC_SIM", (CLI, CTK, HOOK, RUNTIME), "the simulated machine, where --sim, --root and --ldcache are not given. "
     "nvidia-container-cli, CDI hooks and hooks at createContainer do not read it: their environment may be chosen by "
     "a container's owner, and a machine says which files of the host a container gets"),
    ("NVC_DEBUG_FILE", (CLI, HOOK), "the debug log, where --debug is not given"),
    ("NVIDIA_CTK_DEBUG", (CDI_HOOK,), "true: print debug lines, under NVIDIA's names"),
    ("NVIDIA_CDI_DEBUG", (CDI_HOOK,), "as NVIDIA_CTK_DEBUG"),
    ("NVIDIA_CTK_CONFIG_FILE_PATH", (HOOK, RUNTIME, CTK), "the configuration file; it is taken for the toolkit's"),
    ("XDG_CONFIG_HOME", (HOOK, RUNTIME, CTK, f"{CLI} runtime"), "in place of /etc (of ~/.config: rootless engines)"),
    ("XDG_RUNTIME_DIR", (RUNTIME,), "where the state of a rootless engine's containers is (exec)"),
    ("HOME", (f"{CLI} runtime",), "where a rootless engine's files are"),
    ("CONTAINERS_CONF", (f"{CLI} runtime",), "Podman's file"),
    ("PATH", (CLI, HOOK, RUNTIME), "where the driver's programs, and real runtimes, are looked for"),
    ("CUDA_MPS_PIPE_DIRECTORY", (CLI, HOOK), "the pipe directory of the host's MPS server"),
    ("NVC_MODE", (HOOK, RUNTIME), "set by nvc-runtime for its hook: the mode that it decided for"),
    ("NVC_DEVICES", (HOOK, RUNTIME), "set by nvc-runtime for its hook: the devices to give"),
    ("NO_COLOR", (f"{CLI} doctor", f"{CLI} kube"), "print no colours"),
    ("TERM", (f"{CLI} doctor", f"{CLI} kube", f"{CLI} top"), "dumb: print no colours"),
    ("KUBECONFIG", (f"{CLI} kube",), "the cluster's file, where --kubeconfig is not given"),
    ("KUBERNETES_SERVICE_HOST", (f"{CLI} kube",), "set in a pod: the API server is reached as a pod does"),
    ("NODE_NAME", (f"{CLI} agent",), "the node's name in HAMi's metrics; the host's name where it is not set"),
    ("NOTIFY_SOCKET", (f"{CLI} agent",), "of systemd: where readiness is reported"),
    ("LISTEN_PID", (f"{CLI} agent",), "of systemd, with LISTEN_FDS and LISTEN_FDNAMES: sockets that are handed over"),
    ("LISTEN_FDS", (f"{CLI} agent",), "of systemd: how many sockets"),
    ("LISTEN_FDNAMES", (f"{CLI} agent",), "of systemd: their names"),
    ("LISTEN_PIDFDID", (f"{CLI} agent",), "of systemd; not used"),
    ("LC_ALL", (f"{CLI} agent",), "of a caller, with LC_CTYPE and LANG: how file names are encoded"),
    ("LC_CTYPE", (f"{CLI} agent",), "as LC_ALL"),
    ("LANG", (f"{CLI} agent",), "as LC_ALL"),
    ("_NVC_PY_COMPLETE", (CLI,), "set by a shell's completion script"),
)  # fmt: skip

#: Path, programs, meaning.
FILES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("/etc/nvc/config.toml", (CLI, HOOK, CDI_HOOK, RUNTIME), "settings (nvc-py config default)"),
    ("/etc/nvidia-container-runtime/config.toml", (f"{CLI} config", HOOK, RUNTIME, CTK),
     "the container toolkit's settings, where there is no /etc/nvc/config.toml"),
    ("/etc/ld.so.cache", (CLI, HOOK), "where the driver's libraries are found"),
    ("/run/nvc/inventory.json", (CLI, HOOK, CDI_HOOK, RUNTIME), "what is known of this machine's driver and GPUs"),
    ("/run/nvc/share", (f"{CLI} share", f"{CLI} top", f"{CLI} agent", HOOK), "shares of running containers"),
    ("/run/nvc/agent", (f"{CLI} agent", RUNTIME), "the agent's sockets and state"),
    ("/run/nvc/agent/control", (f"{CLI} share", f"{CLI} top", f"{CLI} doctor"), "the agent's control socket"),
    ("/var/lib/nvc/usage.jsonl", (f"{CLI} share", f"{CLI} agent"), "what containers used of GPUs"),
    ("/etc/cdi", (f"{CLI} cdi", RUNTIME), "CDI specifications"),
    ("/var/run/cdi", (f"{CLI} cdi", RUNTIME), "CDI specifications; they go before those of /etc/cdi"),
    ("/etc/docker/daemon.json", (f"{CLI} runtime",), "Docker's settings"),
    ("/etc/containerd/config.toml", (f"{CLI} runtime",), "containerd's settings"),
    ("/etc/crio/crio.conf.d/99-nvidia.toml", (f"{CLI} runtime",), "CRI-O's settings"),
    ("/etc/containers/containers.conf.d/99-nvidia.conf", (f"{CLI} runtime",), "Podman's settings"),
)  # fmt: skip

_CHECK = "with --check: something would change; 0: nothing"
#: Program or command, code, when. What a command has of its own is beside what all have.
EXITS: tuple[tuple[str, str, str], ...] = (
    (CLI, "0", "done; help, version"),
    (CLI, "1", "an error, wrong usage too"),
    (CLI, "130", "interrupted"),
    (f"{CLI} cdi generate", "2", _CHECK),
    (f"{CLI} cdi validate", "1", "a file has a mistake"),
    (f"{CLI} config validate", "1", "a file has a mistake"),
    (f"{CLI} doctor", "2", "there are warnings"),
    (f"{CLI} doctor", "3", "there are errors"),
    (f"{CLI} kube check", "2", "there are warnings"),
    (f"{CLI} kube check", "3", "there are errors"),
    (f"{CLI} kube claims", "1", "pods have claims"),
    (f"{CLI} runtime configure", "2", _CHECK),
    (f"{CLI} share check", "1", "the container would not start"),
    (f"{CLI} share policy", "2", _CHECK),
    (f"{CLI} share set", "2", _CHECK),
    (f"{CLI} sim run", "*", "that of the program"),
    (HOOK, "0", "done; the container asks for no GPU; poststart and poststop; help, version"),
    (HOOK, "1", "an error: the container does not start"),
    (HOOK, "2", "wrong usage"),
    (HOOK, "130", "interrupted"),
    (CDI_HOOK, "0", "done; help"),
    (CDI_HOOK, "1", "an error: the container does not start"),
    (CDI_HOOK, "2", "wrong usage; 1 under NVIDIA's names"),
    (CDI_HOOK, "130", "interrupted"),
    (RUNTIME, "1", "an error: the real runtime was not started"),
    (RUNTIME, "130", "interrupted before that"),
    (RUNTIME, "*", "else that of the real runtime"),
    (CTK, "0", "done; help, version"),
    (CTK, "1", "an error, wrong usage too"),
    (CTK, "3", "an unknown command"),
    (CTK, "130", "interrupted"),
)


def exits(name: str) -> list[tuple[str, str]]:
    """(code, when) of a program ("nvc-hook"), or of a command and those below it ("nvc-py share")."""
    return [
        (code, meaning if program in (name, CLI) else f"{program}: {meaning}")
        for program, code, meaning in EXITS
        if program == name.split()[0] or f"{program} ".startswith(f"{name} ") or program == name
    ]


def own_exits(name: str) -> list[tuple[str, str]]:
    """What one command has beside the codes of all: for its --help."""
    return [(code, meaning) for program, code, meaning in EXITS if program == name]


def environment(name: str) -> list[tuple[str, str]]:
    """(variable, meaning) of a program or command."""
    return _rows(ENVIRONMENT, name)


def files(name: str) -> list[tuple[str, str]]:
    """(path, meaning) of a program or command."""
    return _rows(FILES, name)


def block(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A heading, and a line or more for each row: an epilog that click shows as it is."""
    from textwrap import wrap

    lines = []
    for term, meaning in rows:
        first, *more = wrap(meaning, _TEXT)
        lines += [f"  {term:<{_TERM}}  {first}" if len(term) <= _TERM else f"  {term}\n  {'':<{_TERM}}  {first}"]
        lines += [f"  {'':<{_TERM}}  {line}" for line in more]
    return "\b\n" + f"{title}:\n" + "\n".join(lines)


def _rows(table: Iterable[tuple[str, tuple[str, ...], str]], name: str) -> list[tuple[str, str]]:
    """Those of the command, and those that are its whole program's."""
    return [(term, meaning) for term, programs, meaning in table if {name, name.split()[0]} & {*programs}]
