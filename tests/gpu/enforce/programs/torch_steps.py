"""Trains a small transformer in PyTorch. Lines on stdin: ``rate SECONDS``, answered with steps per second; ``look``.

As in any training, nothing waits for a step before the next ones are launched: two of them lie ready, so that a
processor that is busy with other things for some milliseconds costs the GPU nothing. (With a wait after each step,
windows without a cap differed by a tenth.) Under a cap the end of the window falls into a step: its part before the end
is counted by time.
"""

import collections
import gc
import sys
import time

import torch

AHEAD = 2


def main() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True) for _ in range(8)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    # Large enough that the GPU has work all the time: otherwise a part of its time is more than that part of the steps.
    batch = torch.randn(48, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> torch.cuda.Event:
        optimizer.zero_grad()
        model(batch).float().pow(2).mean().backward()
        optimizer.step()
        done = torch.cuda.Event()
        done.record()
        return done

    def rate(seconds: float) -> float:
        launched = collections.deque([step() for _ in range(AHEAD + 1)])
        launched.popleft().synchronize()  # from the end of a step on, with the next ones launched
        last, steps = time.monotonic(), 0.0
        end = last + seconds
        while True:
            launched.append(step())
            launched.popleft().synchronize()
            now = time.monotonic()
            if now >= end:
                torch.cuda.synchronize()
                return (steps + (end - last) / (now - last)) / seconds
            last, steps = now, steps + 1

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    gc.collect()
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "look\n":  # a call of the driver, which is when a process looks at its limits; training needs none
            torch.cuda.mem_get_info()
            print("looked", flush=True)
            continue
        word, seconds = line.split()
        if word != "rate":
            raise SystemExit(2)
        print(f"{rate(float(seconds)):.6f}", flush=True)


main()
