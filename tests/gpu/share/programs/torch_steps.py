"""Trains a small transformer in PyTorch. Lines on stdin: ``rate SECONDS``, answered with steps per second; ``look``.

Under a cap the end of the window falls into a step: its part before the end is counted by time.
"""

import sys
import time

import torch


def main() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True) for _ in range(8)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).float().pow(2).mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(10):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "look\n":  # a call of the driver, which is when a process looks at its limits; training needs none
            torch.cuda.mem_get_info()
            print("looked", flush=True)
            continue
        word, seconds = line.split()
        if word != "rate":
            raise SystemExit(2)
        start = last = time.monotonic()
        end, steps = start + float(seconds), 0.0
        while True:
            step()
            now = time.monotonic()
            if now >= end:
                steps += (end - last) / (now - last)
                break
            last, steps = now, steps + 1
        print(f"{steps / float(seconds):.6f}", flush=True)


main()
