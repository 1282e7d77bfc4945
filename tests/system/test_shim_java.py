"""CUDA from Java: a library of the JVM's native interface that opens libcuda, on threads of the JVM's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import build
from tests.support.simgpu import SimGpu, make_machine, with_gpu

GIB = 1 << 30
SOURCE = """
#include <dlfcn.h>
#include <jni.h>
#include <stddef.h>

static int (*allocate) (unsigned long long *, size_t), (*release) (unsigned long long);

JNIEXPORT jint JNICALL Java_Gpu_begin (JNIEnv *env, jclass type)
{
    void *cuda = dlopen ("libcuda.so.1", RTLD_NOW), *context;
    int (*init) (unsigned), (*retain) (void **, int), (*set) (void *);

    if (cuda == NULL)
        return -1;
    init = dlsym (cuda, "cuInit");
    retain = dlsym (cuda, "cuDevicePrimaryCtxRetain");
    set = dlsym (cuda, "cuCtxSetCurrent");
    allocate = dlsym (cuda, "cuMemAlloc_v2");
    release = dlsym (cuda, "cuMemFree_v2");
    if (init (0) != 0 || retain (&context, 0) != 0)
        return -2;
    return set (context);
}

JNIEXPORT jlong JNICALL Java_Gpu_take (JNIEnv *env, jclass type, jlong bytes)
{
    unsigned long long address;
    int result = allocate (&address, (size_t) bytes);

    return result == 0 ? (jlong) address : -result;
}

JNIEXPORT jint JNICALL Java_Gpu_give (JNIEnv *env, jclass type, jlong address)
{
    return release ((unsigned long long) address);
}
"""
PROGRAM = """
import java.util.ArrayList;
import java.util.concurrent.Executors;

public class Gpu {
    static native int begin();
    static native long take(long bytes);
    static native int give(long address);

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        try (Closing threads = new Closing()) {
            // Contexts are a thread's: all of it on one that the JVM made.
            threads.pool.submit(() -> {
                System.out.println("begin " + begin());
                for (int round = 0; round < 3; round++) {
                    ArrayList<Long> pieces = new ArrayList<>();
                    long address;
                    while ((address = take(1L << 30)) > 0)
                        pieces.add(address);
                    System.gc();
                    int wrong = 0;
                    for (long piece : pieces)
                        wrong += give(piece);
                    System.out.println(pieces.size() + " " + -address + " " + wrong);
                }
            }).get();
        }
    }

    static class Closing implements AutoCloseable {
        final java.util.concurrent.ExecutorService pool = Executors.newFixedThreadPool(1);
        public void close() { pool.shutdown(); }
    }
}
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler here"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine; beside it the compiled program, in ``java``."""
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build()
    (directory / "java").mkdir()
    compiler = Path(shutil.which("javac") or "").resolve()
    include = compiler.parents[1] / "include"
    (directory / "java/gpu.c").write_text(SOURCE)
    (directory / "java/Gpu.java").write_text(PROGRAM)
    library = ["cc", "-shared", "-fPIC", f"-I{include}", f"-I{include}/linux", "-o", "libgpu.so", "gpu.c", "-ldl"]
    for command in (library, [str(compiler), "Gpu.java"]):
        subprocess.run(command, cwd=directory / "java", check=True, timeout=60)
    return directory


def from_java(place: Path, shared: bool, gpu: SimGpu) -> None:
    gpu.share(memory=10 * GIB)
    libraries = next(gpu.machine.rglob("libcuda.so.1")).parent
    java = Path(shutil.which("javac") or "").resolve().with_name("java")
    environment = {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(libraries),
        "NVC_SIM_MACHINE": str(gpu.text),
        "NVC_SHIM_LIMITS": str(gpu.limits_path),
        "NVC_SHIM_REGION": str(gpu.region_path),
    }
    if shared:
        names = ("libnvc-shim.so", "libnvc-shim-managed.so")
        environment["LD_PRELOAD"] = " ".join(
            str(next((build() / "preload").glob(f"{os.uname().machine}/{name}"))) for name in names
        )
    done = subprocess.run(
        [
            java,
            "-Xmx64m",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            place / "java",
            "Gpu",
            place / "java/libgpu.so",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "begin 0", done.stderr
    if shared:
        assert lines[1:] == ["9 2 0"] * 3, "what a context leaves of 10 GiB, then CUDA_ERROR_OUT_OF_MEMORY"
        assert gpu.region().used(0) == 0
    else:
        assert int(lines[1].split()[0]) > 100


@pytest.mark.parametrize("shared", [True, False], ids=["with a share", "without"])
def test_a_program_in_java_has_its_quota(machine: Path, shared: bool) -> None:
    with_gpu(machine, partial(from_java, machine, shared))
