"""Deterministic work in PyTorch, the same whenever it is asked: ``SEED STEPS`` on stdin, a digest as the answer.

usage: torch_rounds.py train|graph MIB [BATCH]. train: training of a small network from new weights; graph: requests to
a model that is one CUDA graph, each made of the answer before it. MIB of memory are filled beside it, and looked at
each time.
"""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch

WIDTH, LAYERS = 1024, 6

torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
batch = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(WIDTH)).cuda()
first = {name: value.clone() for name, value in model.state_dict().items()}
ballast = torch.arange(int(sys.argv[2]) << 17, dtype=torch.int64, device="cuda")
total = int(ballast.sum())


def digest(*tensors: torch.Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def train(seed: int, steps: int) -> str:
    torch.manual_seed(seed)
    model.load_state_dict(first)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(steps):
        data = torch.randn(batch, WIDTH, device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), data).backward()
        optimizer.step()
    return digest(*model.parameters())


def captured() -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
    request = torch.zeros(batch, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(request)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        answer = torch.sin(50 * model(request))  # a bit that is wrong is in the answer to the last request
    return graph, request, answer


if sys.argv[1] == "graph":
    graph, request, answer = captured()


def serve(seed: int, requests: int) -> str:
    torch.manual_seed(seed)
    request.copy_(torch.randn(batch, WIDTH, device="cuda"))
    for _ in range(requests):
        graph.replay()
        request.copy_(answer)
        torch.cuda.current_stream().synchronize()
    return digest(answer)


act = train if sys.argv[1] == "train" else serve
act(0, 3)
torch.cuda.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    done = act(*map(int, line.split()))
    print(done if int(ballast.sum()) == total else "ballast changed", flush=True)
