"""``keep_warm.py SOCKET LIBRARY``: the agent's side of the pre-fork server; prints the server's pid."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.agent.standby import Warming


async def run() -> None:
    warming = Warming(sys.argv[1], library=sys.argv[2])
    await warming.start()
    print(warming.pid, flush=True)
    await asyncio.sleep(60)


asyncio.run(run())
