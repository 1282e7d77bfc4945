#!/bin/sh
# Runs the GPU suite and the measurements on a machine with an NVIDIA GPU, as root, and writes a report.
# usage: tests/gpu/run.sh [REPORT]          REPORT: default $NVC_REPORT, else build/gpu-report.md
# NVC_CARRY    folder made by tools/carry.py, for machines without runc, crun, podman, busybox, pytest (kept in the
#              environment)
# PYTHON       interpreter; default: .venv's, else python3
# BENCH_FLAGS  as for make bench;  PYTEST_FLAGS  further options of pytest, quoted as for sh:  -k 'podman or doctor'
# NVC_GPU_LOADERS  directory with loaders of Vulkan, EGL and OpenCL for tests/gpu/test_graphics.py, which says what; without it, skipped
# NO_BENCH     set to anything: no measurements
# CUDA_VISIBLE_DEVICES  the UUID of the GPU that tests/gpu/enforce and tests/gpu/bench measure (default: the first), for runs on several GPUs at once.
#              attacks, sequences, open, lent and engines have programs that use the first: those on its machine alone
# NVC_GPU_PARTS  of tests/gpu/enforce only these parts, with commas: quota,kill,seen,cap,tenants,overhead,start,frameworks,
#              containers,refs,two (two GPUs, else skipped),kinds,oversubscribe; of the guard: trace,fairness,caps2,attach,guardcost,guardquota,many,attacks,faults,stop,requests,
#              computed,ranks (two GPUs, else skipped),lent (imports),open (attacks and facts for what is open),engines (of groups and channels),sequences (hostile ones; NVC_PLAYED_SECONDS: how long,
#              default 45), contain (faults of one tenant beside another, and their Xids), mps (a client of the host's MPS)
#              Of tests/gpu/bench, only if they are named: latency-experiments (what a service waits for, lever by lever; 3 minutes),
#              services (make bench-gpu: services beside neighbours; NVC_BENCH_SECONDS, NVC_BENCH_WINDOW, NVC_BENCH_ROWS).
#              suspended-long (suspends and resumes of three tenants that compute, and their usage; NVC_GPU_SUSPENDED_SECONDS: default 460).
#              NVC_GPU_BASELINE: a directory with nvc-monitor and nvc-supervisor of another build, which guardcost compares with this one's (-k another_build)
#              (NVC_GPU_FAULT_SECONDS: how long each fault is repeated, default 30). NVC_GPU_TABLES: where their tables go (default build/gpu-share). NVC_FRAMEWORKS_PYTHON: the
#              interpreter that has PyTorch, JAX and CuPy (default: python3 of PATH)
set -u
cd "$(dirname "$0")/../.." || exit 2
report=${1:-${NVC_REPORT:-build/gpu-report.md}}
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    [ -x .venv/bin/python ] && [ -z "${NVC_CARRY:-}" ] && python=.venv/bin/python
fi
if [ -n "${NVC_CARRY:-}" ]; then
    NVC_CARRY=$(cd "$NVC_CARRY" && pwd) || exit 2
    export NVC_CARRY PYTHONPATH="$NVC_CARRY/site"
fi
export NVC_MUST_RUN=root,system,gpu
# Before the product is installed for the tests, which takes it along.
built=$PWD/native/../build/native
make -s -C native PYTHON="$python" "$built/preload/.made" "$built/nvc-monitor" "$built/nvc-supervisor" "$built/nvc-prober" "$built/nvc-client" "$built/cuda_churn" ||
    echo "gpu suite: the native parts of shares cannot be built here: their tests will fail" >&2
mkdir -p "$(dirname "$report")"

# The exit status of a pipe's first command is lost in sh, so it is written down.
status=$(mktemp)
{
    echo "# GPU suite"
    echo
    echo '```'
    head -1 /proc/driver/nvidia/version
    nvidia-smi -L
    # The shell reads PYTEST_FLAGS again, so that an expression of several words may be quoted in it.
    eval "set -- ${PYTEST_FLAGS:-}"
    "$python" -m pytest -v -p no:cacheprovider -o testpaths= "$@" tests/gpu 2>&1
    echo "pytest $?" >"$status"
    echo '```'
    echo
    if [ -z "${NO_BENCH:-}" ]; then
        # shellcheck disable=SC2086 # several words are wanted
        "$python" -m tools.bench ${BENCH_FLAGS:-} 2>&1
        echo "bench $?" >>"$status"
    fi
} | tee "$report"
summary=$(tr '\n' ' ' <"$status")
rm -f "$status"
echo "gpu suite: exit codes: ${summary}- report: $report"
case $summary in
    "pytest 0 " | "pytest 0 bench 0 ") exit 0 ;;
    *) exit 1 ;;
esac
