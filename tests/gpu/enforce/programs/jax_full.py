"""JAX to the limit and on: allocates until it is refused, gives back, computes again. One JSON object."""

import json

import jax
import jax.numpy as jnp


def main() -> None:
    pieces, error = [], ""
    try:
        while len(pieces) < 64:
            pieces.append(jnp.ones((512 << 20,), dtype=jnp.uint8).block_until_ready())
    except Exception as refused:  # what JAX raises has had several names; the test looks at it
        error = f"{type(refused).__name__}: {str(refused)[:60]}"
    taken = len(pieces) << 29
    sound = all(int(piece[-1]) == 1 for piece in pieces)
    for piece in pieces:
        piece.delete()
    again = jnp.arange(1 << 20, dtype=jnp.float32)
    result = float(again @ again)
    statistics = jax.devices()[0].memory_stats() or {}
    print(json.dumps({
        "taken": taken, "error": error, "sound": sound, "again": result > 0,
        "pool": statistics.get("bytes_limit", 0), "platform": jax.devices()[0].platform,
    }))  # fmt: skip


main()
