"""Serves a model in PyTorch with random weights, one request after the other, and says how long requests took.

Argument: encoder (12 layers of a transformer over 88 texts of 128 positions, one CUDA graph: some 4.5 ms), vision
(ResNet-50, batch 8, one CUDA graph) or decode (32 tokens of a decoder with a cache, batch 8, each token one CUDA
graph). An encoder that launches its kernels one by one has no p99 to compare: alone it differed by half from one minute
to the next. Lines on stdin:

- ``closed N``: N requests without a pause; answered ``requests/s``.
- ``open RATE SECONDS SEED``: requests arrive by a Poisson process, the same with the same seed. A latency is from the
  arrival to the answer's end. Answered with a line of JSON: of each, in order, its latency and the time since it was
  begun, in microseconds, and whether it had to wait for the one before it. Of a request that this program began late by
  itself (it did not run, and no request was before it) there is none: it did not wait for the GPU.
"""

import gc
import json
import random
import sys
import time
from collections.abc import Callable

import torch

Serve = Callable[[], None]
WARM = 30
#: Of an encoder's request.
TEXTS = 88
TOKENS, BATCH, WIDTH, LAYERS, CACHE = 32, 8, 2048, 24, 1024
#: Seconds of this program's own that a latency may have in it.
LATE = 0.0001


def graphed(act: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            act()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = act()
    return graph, out


def replay(act: Callable[[], torch.Tensor]) -> Serve:
    graph, out = graphed(act)

    def serve() -> None:
        graph.replay()
        out.item()

    return serve


def encoder() -> Serve:
    layers = [torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True) for _ in range(12)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).eval()
    request = torch.randn(TEXTS, 128, 768, device="cuda", dtype=torch.bfloat16)
    return replay(lambda: model(request).sum())


class Block(torch.nn.Module):
    """A bottleneck of ResNet-50."""

    def __init__(self, inner: int, outer: int, width: int, stride: int) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.main = torch.nn.Sequential(
            *(conv(inner, width, 1, bias=False), norm(width), torch.nn.ReLU(inplace=True)),
            *(conv(width, width, 3, stride, 1, bias=False), norm(width), torch.nn.ReLU(inplace=True)),
            *(conv(width, outer, 1, bias=False), norm(outer)),
        )
        other = inner != outer or stride != 1
        self.side = torch.nn.Sequential(conv(inner, outer, 1, stride, bias=False), norm(outer)) if other else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + (x if self.side is None else self.side(x)))


def vision() -> Serve:
    layers = [torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU(inplace=True)]
    layers.append(torch.nn.MaxPool2d(3, 2, 1))
    inner = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Block(inner, 4 * width, width, stride if index == 0 else 1))
            inner = 4 * width
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2048, 1000)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.float16, memory_format=torch.channels_last).eval()
    request = torch.randn(8, 3, 224, 224, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    return replay(lambda: model(request).sum())


def decode() -> Serve:
    """A token: attention over the cache and two matrices a layer, as in a language model of 1.2 billion parameters."""
    make = {"device": "cuda", "dtype": torch.bfloat16}
    inner = [torch.randn(WIDTH, 4 * WIDTH, **make) * 0.01 for _ in range(LAYERS)]
    outer = [torch.randn(4 * WIDTH, WIDTH, **make) * 0.01 for _ in range(LAYERS)]
    keys = torch.randn(LAYERS, BATCH, 16, CACHE, WIDTH // 16, **make)
    state = torch.randn(BATCH, WIDTH, **make)

    def token() -> torch.Tensor:
        now = state
        for layer in range(LAYERS):
            query = now.view(BATCH, 16, 1, WIDTH // 16)
            seen = torch.nn.functional.scaled_dot_product_attention(query, keys[layer], keys[layer])
            now = now + torch.relu((now + seen.reshape(BATCH, WIDTH)) @ inner[layer]) @ outer[layer]
        state.copy_(now / (now.norm() + 1))
        return state

    graph, _ = graphed(token)

    def serve() -> None:
        for _ in range(TOKENS):
            graph.replay()
            torch.cuda.synchronize()  # a token is given out before the next one is begun

    return serve


def closed(serve: Serve, count: int) -> str:
    begun = time.perf_counter()
    for _ in range(count):
        serve()
    return f"{count / (time.perf_counter() - begun):.3f}"


def offered(serve: Serve, rate: float, seconds: float, seed: int) -> str:
    draw = random.Random(seed)
    took, moment = list[tuple[int, int, bool]](), 0.0
    begun = free = time.perf_counter()
    while (moment := moment + draw.expovariate(rate)) < seconds:
        due = begun + moment
        while (left := due - time.perf_counter()) > 0:
            if left > 0.0004:
                time.sleep(left - 0.0003)
        start = time.perf_counter()
        serve()
        end = time.perf_counter()
        if start <= max(due, free) + LATE:
            took.append((round(1e6 * (end - due)), round(1e6 * (end - start)), due < free))
        free = end
    return json.dumps(took)


def main() -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        serve = {"encoder": encoder, "vision": vision, "decode": decode}[sys.argv[1]]()
        for _ in range(WARM):
            serve()
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()
        print("ready", flush=True)
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "closed":
                print(closed(serve, int(rest[0])), flush=True)
            elif word == "open":
                print(offered(serve, float(rest[0]), float(rest[1]), int(rest[2])), flush=True)
            else:
                raise SystemExit(2)


main()
