"""The subresources of pods that lead into a node, `pods/proxy` and `pods/exec`, and the discovery for kubectl.

`pods/proxy` passes a GET on to the pod's IP and port, as the API server does without a service mesh of its own. What it
says if nobody listens there is kube-apiserver's (apimachinery, pkg/util/proxy/upgradeaware.go and errors of Go's net).

`pods/exec` speaks `v5.channel.k8s.io`, as kubectl does since 1.31 (KEP-4006): a frame begins with the number of its
channel (0 stdin, 1 stdout, 2 stderr, 3 the status, 255 closes the channel that follows); at the end the server sends a
Status on channel 3 and closes. Held against kubectl 1.37 of the test dependencies, which is the only client here; the
sources are apimachinery's pkg/util/remotecommand/constants.go and client-go's tools/remotecommand. A client without
WebSockets (SPDY, kubectl before 1.31) is refused.

Instead of a container runtime, the annotation EXEC of a pod names a directory with the programs that its container has:
the command is looked up there, and really runs, with nothing else in PATH but the system's programs.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from tests.apiserver import status
from tests.apiserver.access import USER
from tests.apiserver.answers import error_answer
from tests.apiserver.resources import PODS, TYPES, Object, Target
from tests.apiserver.status import StatusError

if TYPE_CHECKING:
    from tests.apiserver.server import ApiServer

EXEC = "tests.kroute.io/programs"
PROTOCOL = "v5.channel.k8s.io"
STDOUT, STDERR, ERROR = 1, 2, 3
DIAL_SECONDS = 30.0
_PIECE = 32 * 1024
_POD = "/api/v1/namespaces/{namespace}/pods/"


def add_routes(router: web.UrlDispatcher, server: "ApiServer") -> None:
    """Answer these paths of a server. The routes must be added before one for every path."""

    def admitted(resource: str, answer: Callable[[web.Request, Object], Any]) -> Callable[[web.Request], Any]:
        async def answer_or_refuse(request: web.Request) -> web.StreamResponse:
            name = request.match_info["name"].partition(":")[0]
            target = Target(PODS, request.match_info["namespace"], name)
            try:
                server.authenticate(request)
                verb = "get" if resource == "pods/proxy" else "create"
                if not server.access.allows(verb, resource):
                    raise status.forbidden(target, verb, USER, resource)
                if target.key not in server.store.current(PODS):
                    raise status.no_such_object(PODS, name)
                found: web.StreamResponse = await answer(request, server.store.current(PODS)[target.key])
            except StatusError as error:
                return error_answer(error)
            return found

        return answer_or_refuse

    router.add_get(_POD + "{name}/proxy/{path:.*}", admitted("pods/proxy", _proxy))
    for method in ("GET", "POST"):  # POST: SPDY, which kubectl tries when the WebSocket is refused
        router.add_route(method, _POD + "{name}/exec", admitted("pods/exec", _exec))
    documents: dict[str, Object] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": _resources()},
    }
    for path, document in documents.items():
        router.add_get(path, _constant(document))


def _constant(document: Object) -> Callable[[web.Request], Any]:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"apiVersion": "v1", **document})

    return answer


def _resources() -> list[Object]:
    return [
        {
            "name": it.plural,
            "singularName": it.kind.lower(),
            "namespaced": it.namespaced,
            "kind": it.kind,
            "verbs": ["create", "delete", "get", "list", "update", "watch"],
        }
        for it in TYPES
        if not it.group
    ]


async def _proxy(request: web.Request, pod: Object) -> web.StreamResponse:
    port = request.match_info["name"].partition(":")[2] or "80"
    address = pod["status"]["podIP"]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}/{request.match_info['path']}"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DIAL_SECONDS)) as session,
            session.get(url, params=request.query, headers={"Accept": request.headers.get("Accept", "*/*")}) as answer,
        ):
            kind = answer.headers.get("Content-Type", "text/plain")
            return web.Response(status=answer.status, body=await answer.read(), headers={"Content-Type": kind})
    except (aiohttp.ClientConnectorError, TimeoutError) as error:
        is_refused = isinstance(error, aiohttp.ClientConnectorError) and isinstance(
            error.os_error, ConnectionRefusedError
        )
        why = "connect: connection refused" if is_refused else "i/o timeout"
        message = f"error trying to reach service: dial tcp {address}:{port}: {why}"
        raise StatusError(503, "ServiceUnavailable", message) from None


async def _exec(request: web.Request, pod: Object) -> web.StreamResponse:
    if PROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", ""):
        raise status.bad_request(f"unable to upgrade: this stand-in speaks {PROTOCOL} only")
    names = [it["name"] for it in pod["spec"]["containers"]]
    container = request.query.get("container", names[0])
    if container not in names:
        raise status.bad_request(f"container {container} is not valid for pod {pod['metadata']['name']}")
    socket = web.WebSocketResponse(protocols=(PROTOCOL,))
    await socket.prepare(request)
    verdict = await _run(socket, Path(pod["metadata"]["annotations"][EXEC]), request.query.getall("command"))
    await socket.send_bytes(bytes([ERROR]) + json.dumps(verdict).encode())
    await socket.close()
    return socket


async def _run(socket: web.WebSocketResponse, programs: Path, command: list[str]) -> Object:
    """Run the command, and send what it writes. Returns the Status of its end."""
    path = f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"
    program = shutil.which(command[0], path=path)
    if program is None:
        message = f'exec: "{command[0]}": executable file not found in $PATH: unknown'
        return {"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": 500}
    environment = {"PATH": path, "HOME": os.environ.get("HOME", "/")}
    process = await asyncio.create_subprocess_exec(
        program,
        *command[1:],
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(_send(socket, STDOUT, process.stdout), _send(socket, STDERR, process.stderr))
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not code:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def _send(socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader) -> None:
    while piece := await stream.read(_PIECE):
        await socket.send_bytes(bytes([channel]) + piece)
