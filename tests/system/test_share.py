"""A share in containers of runc, crun and Podman: its files, what may be written, and what a failure leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nvc.share import store
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.cgroupview import available, named
from tests.support.engines import Podman
from tests.support.native import build
from tests.support.runtimes import OciRuntime, Result
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system

SHIM = "/usr/lib/nvc/$PLATFORM/libnvc-shim.so /usr/lib/nvc/$PLATFORM/libnvc-shim-managed.so"
#: What a container says about its share.
LOOK = (Path(__file__).parent / "programs/look_at_share.sh").read_text()
ATTRIBUTES = {
    "/usr/lib/nvc": {"ro", "nosuid", "nodev"},
    "/run/nvc-share/limits": {"ro", "nosuid", "nodev", "noexec"},
    "/run/nvc-share/region": {"rw", "nosuid", "nodev", "noexec"},
    "/etc/ld.so.preload": {"ro", "nosuid", "nodev", "noexec"},
}


@pytest.fixture(autouse=True)
def libraries(bed: Bed) -> Iterator[None]:
    """The libraries are built, and installed with the commands. No entry of the bed's is left."""
    assert (build() / "preload" / os.uname().machine / "libnvc-shim.so").exists()
    forget(bed)
    yield
    forget(bed)


def forget(bed: Bed) -> None:
    for entry in store.entries()[0]:
        with entry:
            if bed.token in entry.record.container or bed.token in entry.record.rootfs:
                store.remove(entry.record.key)


def look(rootfs: Path, *env: str, **changes: object) -> Container:
    return Container(rootfs, ["/bin/sh", "-c", LOOK], [*gpu_env("all"), *env], **changes)  # type: ignore[arg-type]


def attributes(result: Result) -> dict[str, set[str]]:
    rows = [line.split() for line in result.out.splitlines() if line.startswith("mount ")]
    return {row[1]: set(row[2].split(",")) - {"relatime", "noatime"} if len(row) > 2 else set() for row in rows}


def check(result: Result, preload: str = SHIM) -> None:
    assert (result.code, result.complaints) == (0, ""), result.text
    assert attributes(result) == ATTRIBUTES
    lines = [line.strip() for line in result.out.splitlines() if not line.startswith("mount ")]
    assert lines == [
        f"preload: {preload}",
        "region can be written",
        "magic NVCL NVCR",
        "a program runs",
        "with libnvc-shim.so",
        "with libnvc-shim-managed.so",
    ]


def kept(bed: Bed) -> list[str]:
    """Entries of the bed's containers: by their root, which has the bed's token in its path."""
    found = store.entries()[0]
    try:
        return [entry.record.key for entry in found if bed.token in entry.record.rootfs]
    finally:
        for entry in found:
            entry.close()


@pytest.mark.parametrize(
    ("name", "view", "stage"),
    [
        ("runc", "v1", "prestart"),
        ("runc", "v2", "createRuntime"),
        ("runc", "hybrid", "createContainer"),
        ("crun", "v1", "createContainer"),
        ("crun", "v2", "prestart"),
    ],
)
def test_an_annotation_gives_a_share(
    bed: Bed, ask: Callable[[str, str], OciRuntime], name: str, view: str, stage: str
) -> None:
    tree, runtime = bed.rootfs(), ask(name, view)
    hooks = {stage: [bed.hook(stage)]}

    check(bed.run(runtime, look(tree, hooks=hooks, annotations={"nvc.share": "mem=2Gi,cap=50%"})))
    # The mounts went with the container, and what the image has is as it was.
    assert not (tree / "etc/ld.so.preload").read_bytes()


@pytest.mark.parametrize(
    "variable", ["NVC_SHARE=mem=2Gi", "CUDA_DEVICE_MEMORY_LIMIT=2g", "NVIDIA_GPU_MEMORY_LIMIT=2048"]
)
def test_a_variable_gives_a_share(bed: Bed, runc: OciRuntime, variable: str) -> None:
    check(bed.run(runc, look(bed.rootfs(), variable, hooks={"prestart": [bed.hook("prestart")]})))


def test_what_the_image_preloads_is_kept(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    (tree / "etc/ld.so.preload").write_text("# its own\n")
    result = bed.run(runc, look(tree, "NVC_SHARE=mem=2Gi", hooks={"prestart": [bed.hook("prestart")]}))

    check(result, f"# its own {SHIM}")
    assert (tree / "etc/ld.so.preload").read_text() == "# its own\n"


def test_a_root_that_cannot_be_written_is_no_hindrance(bed: Bed, runc: OciRuntime) -> None:
    hooks = {"prestart": [bed.hook("prestart")]}
    check(bed.run(runc, look(bed.rootfs(), "NVC_SHARE=mem=2Gi", hooks=hooks, readonly=True)))


def test_every_user_of_a_container_can_write_the_region(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs(owner=100_000)
    hooks = {"prestart": [bed.hook("prestart")]}
    check(bed.run(runc, look(tree, "NVC_SHARE=mem=2Gi", hooks=hooks, id_offset=100_000)))


@pytest.mark.parametrize("env", [(), ("NVC_SHARE=off",)], ids=["none asked for", "off"])
def test_without_a_share_nothing_is_there(bed: Bed, runc: OciRuntime, env: Sequence[str]) -> None:
    tree = bed.rootfs()
    command = ["/bin/sh", "-c", "ls /etc/ld.so.preload /usr/lib/nvc /run/nvc-share 2>/dev/null; true"]
    result = bed.run(runc, Container(tree, command, [*gpu_env("all"), *env], {"prestart": [bed.hook("prestart")]}))

    assert (result.code, result.out, kept(bed)) == (0, "", [])


def test_a_container_that_starts_again_gets_its_files_anew(bed: Bed, runc: OciRuntime) -> None:
    tree, name = bed.rootfs(), bed.name("c")
    hooks = {"prestart": [bed.hook("prestart")]}
    for memory in ("1Gi", "2Gi"):
        try:
            result = runc.run(bed.bundle(look(tree, f"NVC_SHARE=mem={memory}", hooks=hooks)), name)
        finally:
            runc.clean()
        check(result)


BAD = [
    pytest.param("mem=lots", "share: mem='lots' is not an amount of memory", id="no amount"),
    pytest.param("mem=2Gi,speed=3", "share: unknown setting 'speed=3'", id="no setting"),
    pytest.param("mem=9000Gi", "mem=9000Gi is more than GPU 0 has", id="more than there is"),
]


@pytest.mark.parametrize(("share", "message"), BAD)
def test_a_share_that_cannot_be_fails_the_container_with_its_word(
    bed: Bed, ask: Callable[[str, str], OciRuntime], share: str, message: str
) -> None:
    for name in ("runc", "crun"):
        view = next(view.name for view in available() if name == "runc" or view.name != "hybrid")
        tree, log = bed.rootfs(), bed.directory("log") / "hook"
        hook = bed.hook("prestart", "--debug", str(log))
        result = bed.run(ask(name, view), look(tree, hooks={"prestart": [hook]}, annotations={"nvc.share": share}))

        assert result.code != 0
        assert "a program runs" not in result.out
        # crun shows nothing of a hook's own words.
        assert f"nvc.share: {message}" in (result.text if name == "runc" else log.read_text())
        assert not (tree / "etc/ld.so.preload").exists()
        assert kept(bed) == []


def test_the_nodes_maximum_holds_for_every_container(bed: Bed, runc: OciRuntime) -> None:
    config = bed.directory("config") / "config.toml"
    config.write_text('[share]\nmaximum = "mem=1Gi"\n')
    hook = bed.hook("prestart", f"--config={config}")
    result = bed.run(runc, look(bed.rootfs(), hooks={"prestart": [hook]}, annotations={"nvc.share": "mem=2Gi"}))

    assert result.code != 0
    assert "nvc.share: mem=2Gi is more than this node gives" in result.text


def test_the_nodes_default_holds_without_a_request(bed: Bed, runc: OciRuntime) -> None:
    config = bed.directory("config") / "config.toml"
    config.write_text('[share]\ndefault = "mem=50%"\n')
    check(bed.run(runc, look(bed.rootfs(), hooks={"prestart": [bed.hook("prestart", f"--config={config}")]})))


def test_a_mig_device_has_no_share(bed: Bed, runc: OciRuntime) -> None:
    env = [*gpu_env("0:0"), "NVC_SHARE=mem=1Gi"]
    hook = bed.hook("prestart", machine="a100-mig-dev")
    result = bed.run(runc, Container(bed.rootfs(), ["/bin/true"], env, {"prestart": [hook]}))

    assert result.code != 0
    assert "NVC_SHARE: a MIG device cannot be shared" in result.text


def test_an_image_whose_file_is_a_directory_is_refused(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    (tree / "etc/ld.so.preload").mkdir()
    result = bed.run(runc, look(tree, "NVC_SHARE=mem=1Gi", hooks={"prestart": [bed.hook("prestart")]}))

    assert result.code != 0
    assert "/etc/ld.so.preload: not a regular file" in result.text
    assert kept(bed) == []


def test_an_image_of_static_programs_runs_as_ever(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    for loader in (tree / "usr/lib64").glob("ld-linux*"):
        loader.unlink()
    log = bed.directory("log") / "hook"
    hook = bed.hook("prestart", "--debug", str(log))
    result = bed.run(runc, Container(tree, ["/bin/true"], [*gpu_env("all"), "NVC_SHARE=mem=1Gi"], {"prestart": [hook]}))

    assert (result.code, result.complaints) == (0, "")
    assert "the image has no loader: static programs have no limits" in log.read_text()


def test_a_later_hook_that_fails_leaves_files_for_the_next_to_sweep(bed: Bed, runc: OciRuntime) -> None:
    """The runtime ends the container: without notice, and the next share on the machine removes what it had."""
    hooks = {"prestart": [bed.hook("prestart"), bed.shell_hook("exit 3")]}
    assert bed.run(runc, look(bed.rootfs(), "NVC_SHARE=mem=1Gi", hooks=hooks)).code != 0
    store.clean()

    assert kept(bed) == []


def podman_of(bed: Bed, need: Callable[..., None], runtime: str, hooks: dict[str, Hook]) -> Podman:
    need("podman", "conmon", runtime)
    view = next(view for view in available() if runtime == "runc" or view.name != "hybrid")
    seen = named(view.name)
    assert seen is not None
    podman = Podman(runtime, seen, bed.directory("podman"), bed.preload(runtime, view.name), bed.env)
    podman.prepare(hooks)
    return podman


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podmans_annotation_gives_a_share(bed: Bed, need: Callable[..., None], runtime: str) -> None:
    log = bed.directory("log") / "hook"
    podman = podman_of(bed, need, runtime, {"prestart": bed.hook("prestart", "--debug", str(log))})
    name = bed.name("podman")
    try:
        result = podman.run(
            bed.rootfs(), name, ["/bin/sh", "-c", LOOK], gpu_env("all"), ("--annotation", "nvc.share=mem=2Gi,cap=50%")
        )
        check(result)
        bad = podman.run(
            bed.rootfs(), name, ["/bin/sh", "-c", LOOK], gpu_env("all"), ("--annotation", "nvc.share=cap=150%")
        )
    finally:
        podman.clean(name)
    assert bad.code != 0
    assert "nvc.share: share: cap='150%' is not a percentage" in log.read_text()


def test_the_runtime_gives_shares_through_its_hook(bed: Bed, runc: OciRuntime) -> None:
    container = look(bed.rootfs(), annotations={"nvc.share": "mem=2Gi"})
    command = runc.command("run", "--bundle", str(bed.bundle(container)), bed.name("c"))
    place = command.index(next(word for word in command if word.endswith("runc")))
    command[place] = bed.commands.runtime
    result = bed.call(*command, env={"NVC_SIM": str(bed.machine("h200"))})

    check(result)


def test_what_a_cdi_specification_does_not_hold_comes_from_a_hook(bed: Bed, runc: OciRuntime) -> None:
    machine, specs = bed.machine("h200"), bed.directory("cdi")
    bed.call(bed.commands.nvc, f"--sim={machine}", "cdi", "generate", "-o", str(specs / "nvidia.yaml"), check=True)
    settings = f'mode = "cdi"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{specs}"]'
    wrapped = Wrapped(bed, runc, settings, "h200")

    check(wrapped.run(look(bed.rootfs(), annotations={"nvc.share": "mem=2Gi"})))
    nothing = Container(bed.rootfs(), ["/bin/sh", "-c", "ls /usr/lib/nvc 2>/dev/null; true"], gpu_env("all"))
    result = wrapped.run(nothing)
    assert (result.code, result.out) == (0, "")


def test_a_dry_run_says_what_would_be_made(bed: Bed) -> None:
    tree = bed.rootfs()
    words = ("configure", "--device=0", "--utility", "--no-cgroups", "--share=mem=2Gi,cap=50%", "--dry-run", str(tree))
    lines = bed.call(bed.commands.nvc, f"--sim={bed.machine('h200')}", *words, check=True).out.splitlines()

    made = next(line for line in lines if line.startswith("make /run/nvc/share/"))
    key = made.split()[1]
    assert made.endswith("for a share by --share, mem=2Gi,cap=50%; preload libnvc-shim.so, libnvc-shim-managed.so")
    assert f"mount file {key}/limits.copy on /run/nvc-share/limits (ro,nodev,nosuid,noexec)" in lines
    assert f"mount file {key}/region on /run/nvc-share/region (nodev,nosuid,noexec)" in lines
    assert f"mount file {key}/preload on /etc/ld.so.preload (ro,nodev,nosuid,noexec)" in lines
    assert any(line.endswith("/preload on /usr/lib/nvc (ro,nodev,nosuid)") for line in lines)
    assert not Path(key).exists()
