"""A process that listens as an agent does: on its Unix socket in the directory given, and for HTTP on a port.

It prints the port, and ends with its standard input.
"""

import asyncio
import sys
from http import HTTPStatus
from pathlib import Path

from kroute.base import logs
from kroute.http.messages import Request, Response, text
from kroute.http.server import BriefHttpServer
from kroute.inspect import agent_socket
from kroute.runtime.runner import run_to_the_end


async def serve() -> int:
    async def answer(_: Request) -> Response:
        return text(HTTPStatus.OK, "fine")

    async def say(about: str) -> bytes:
        return about.encode()

    listening = await BriefHttpServer(answer).listen("127.0.0.1", 0)
    async with agent_socket.serve(Path(sys.argv[1]), {"say": say}):
        print(listening.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
    listening.close()
    return 0


if __name__ == "__main__":
    logs.configure("json", "info")
    sys.exit(run_to_the_end(serve()))
