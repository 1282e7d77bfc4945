"""Trains a small convolutional network in PyTorch for ever, with batches of changing sizes and an emptied cache now and
then, so that memory comes and goes; says "ready" after its first steps.
"""

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(128 * 64, 1000),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1 << 30):
        batch = torch.randn(16 + 16 * (step % 5), 3, 96, 96, device="cuda")
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % 20 == 19:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        if step == 10:
            torch.cuda.synchronize()
            print("ready", flush=True)


main()
