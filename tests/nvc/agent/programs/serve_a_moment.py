"""``serve_a_moment.py PATH``: a control socket that is served for 100 ms and then cancelled."""

import asyncio
import socket
import sys

from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal


async def run(server: socket.socket) -> None:
    serving = asyncio.ensure_future(ControlSocket(server, {}, Journal(-1), lambda: -1).serve())
    await asyncio.sleep(0.1)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
made.listen(8)
asyncio.run(run(made))
