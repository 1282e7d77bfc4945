"""``keep_standby.py SOCKET LIBRARY``: the agent's side of the pre-fork server; prints the server's pid."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.agent.standby import Standby


async def run() -> None:
    standby = Standby(sys.argv[1], library=sys.argv[2])
    await standby.start()
    print(standby.pid, flush=True)
    await asyncio.sleep(60)


asyncio.run(run())
