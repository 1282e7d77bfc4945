"""Keeps a GPU busy in PyTorch. Argument: memory (copies of 1 GiB) or products (matrix products of 20 ms each).

Lines on stdin: ``rate SECONDS``, answered with how many a second; two lie ready, as in any training.
"""

import collections
import sys
import time
from collections.abc import Callable

import torch

AHEAD = 2
MILLISECONDS = 20


def memory() -> Callable[[], None]:
    one = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(one)
    return lambda: other.copy_(one)


def products() -> Callable[[], None]:
    def make(size: int) -> Callable[[], None]:
        one = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(one)
        return lambda: torch.mm(one, one, out=out)

    act, begin, end = make(8192), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(10):
        begin.record()
        act()
        end.record()
    end.synchronize()
    return make(int(8192 * (MILLISECONDS / begin.elapsed_time(end)) ** (1 / 3)) // 128 * 128)


def main() -> None:
    act = {"memory": memory, "products": products}[sys.argv[1]]()

    def step() -> torch.cuda.Event:
        act()
        done = torch.cuda.Event()
        done.record()
        return done

    for _ in range(5):
        act()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line.split()[1])
        launched = collections.deque([step() for _ in range(AHEAD + 1)])
        launched.popleft().synchronize()
        last, count = time.monotonic(), 0.0
        end = last + seconds
        while True:
            launched.append(step())
            launched.popleft().synchronize()
            now = time.monotonic()
            if now >= end:
                torch.cuda.synchronize()
                print(f"{(count + (end - last) / (now - last)) / seconds:.6f}", flush=True)
                break
            last, count = now, count + 1


main()
