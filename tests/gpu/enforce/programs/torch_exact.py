"""Training whose every bit is determined: ``step N`` on standard input, a digest of all parameters as the answer."""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch

torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
ballast = torch.arange(int(sys.argv[1]) << 17, dtype=torch.int64, device="cuda")  # MiB
total = int(ballast.sum())


def step() -> None:
    data = torch.randn(256, 1024, device="cuda")
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(data), data).backward()
    optimizer.step()


print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line.split()[1])):
        step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(digest.hexdigest()[:16] if int(ballast.sum()) == total else "ballast changed", flush=True)
