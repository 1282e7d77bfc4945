"""PyTorch to the limit and on: allocates until it is refused, gives back, allocates again. One JSON object."""

import json

import torch


def main() -> None:
    pieces, error = [], ""
    free, total = torch.cuda.mem_get_info()
    try:
        while len(pieces) < 64:
            pieces.append(torch.ones(512 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as refused:
        error = f"{type(refused).__module__}.{type(refused).__name__}"
    taken = len(pieces) << 29
    sound = all(int(piece[-1]) == 1 for piece in pieces)
    pieces.clear()
    torch.cuda.empty_cache()
    again = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    result = float((again @ again).cpu())
    whole = torch.empty(taken - (1 << 29), dtype=torch.uint8, device="cuda")
    backend = torch.cuda.get_allocator_backend()
    print(json.dumps({
        "total": total, "free": free, "taken": taken, "error": error, "sound": sound, "again": result > 0,
        "whole": whole.numel(), "backend": backend,
    }))  # fmt: skip


main()
