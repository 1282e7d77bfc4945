"""A rank of a tensor-parallel program: work on each GPU, then an all-reduce of what came out, for ever.

usage: torch_ranks.py RANK RANKS PORT. Lines on stdin of every rank: ``rate SECONDS WORK``, answered by the first with
steps per second and by the others with 0. WORK is ``cycles`` (kernels that count them) or ``products`` (of matrices,
which make a GPU draw all the power that it may, and lower its clock). ``check``, answered with 1 if an all-reduce gave
the right sum. All ranks are told the same: they go through a line together, and the first says when a window is over,
in the all-reduce of its last step.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    rank, ranks, port = map(int, sys.argv[1:])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    # A rank that hangs ends with an error before the test gives up on it.
    dist.init_process_group(
        "nccl", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=30), device_id=device
    )
    torch.manual_seed(rank)
    left = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    right = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    out = torch.empty(8192, 8192, device=device, dtype=torch.bfloat16)
    over = torch.zeros(1, device=device)

    def step(work: str, last: bool) -> bool:
        # So many that the GPU hardly ever waits: only then is a part of the time the same part of the steps.
        if work == "products":
            for _ in range(8):
                torch.mm(left, right, out=out)
        else:
            for _ in range(12):
                torch.cuda._sleep(2_000_000)
        dist.all_reduce(out[:4096])
        over.fill_(float(last))
        dist.all_reduce(over)
        return bool(over.item())

    def rate(seconds: float, work: str) -> float:
        start = previous = time.monotonic()
        end, steps = start + seconds, 0.0
        while not step(work, rank == 0 and time.monotonic() >= end):
            # The step that goes over the end counts by time.
            now = time.monotonic()
            steps += min(1.0, max(0.0, (end - previous) / (now - previous)))
            previous = now
        return steps / seconds if rank == 0 else 0.0

    def check() -> bool:
        sums = torch.full((1 << 20,), float(rank + 1), device=device)
        dist.all_reduce(sums)
        return bool((sums == ranks * (ranks + 1) / 2).all())

    for _ in range(5):
        step("products", last=False)
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        word, *more = line.split()
        if word == "rate":
            print(f"{rate(float(more[0]), more[1]):.6f}", flush=True)
        elif word == "check":
            print(int(check()), flush=True)
        else:
            raise SystemExit(2)
    # Not closed: destroy_process_group waits for ranks that may be gone.
    os._exit(0)


main()
