"""A real kube-apiserver with etcd on this end of the wire. No controller runs, so its objects are the bench's."""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from bench.phases.lengths import BenchError
from bench.phases.session import make_certificate
from bench.place.node import API_ADDRESS
from bench.workload import Object
from tests.apiserver.resources import BY_KIND
from tests.lab import control_plane
from tests.lab.kubernetes import required

PORT = 6443
SERVICE_RANGE = "10.96.0.0/12"
_TOKEN = "bench-token"
_AT_ONCE = 8
_STARTS_WITHIN = 180.0
_AWAY_WITHIN = 120.0
_ENDS_WITHIN = 10.0


class ControlPlane:
    """Both programs, with their files in `directory`, which a later one may go on with; within an `async with`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        made = make_certificate(self._directory, API_ADDRESS)
        self.authority = made.file.read_text()
        (self._directory / "tokens.csv").write_text(f'{_TOKEN},bench,1,"system:masters"\n')
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {_TOKEN}"})
        self._tls = False  # the server is this process's own
        self._start("etcd", control_plane.etcd(required("etcd"), str(self._directory / "etcd")))
        await self.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        for process in reversed(self._processes.values()):
            process.terminate()
            process.wait()

    def kubeconfig(self) -> Object:
        """The content of a kubeconfig for the proxies."""
        cluster = {"server": f"https://{API_ADDRESS}:{PORT}", "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {"token": _TOKEN}}],
        }

    @property
    def service_account(self) -> dict[str, str]:
        """The files of a Pod's service account, by name."""
        return {"token": _TOKEN, "ca.crt": self.authority}

    # ---- the programs --------------------------------------------------------------------------------------------

    async def start_server(self) -> float:
        """Start kube-apiserver, and wait until it is ready. Returns the seconds that this took."""
        began = time.monotonic()
        key = str(self._directory / "key.pem")
        certificate = (f"--tls-cert-file={self._directory}/authority.pem", f"--tls-private-key-file={key}")
        address = (f"--bind-address={API_ADDRESS}", f"--advertise-address={API_ADDRESS}", "--authorization-mode=RBAC")
        command = control_plane.api_server(
            required("kube-apiserver"),
            *(*address, *certificate, "--etcd-compaction-interval=0"),
            services=SERVICE_RANGE,
            signing_key=key,
            tokens=str(self._directory / "tokens.csv"),
        )
        process = self._start("kube-apiserver", command)
        while time.monotonic() - began < _STARTS_WITHIN and process.poll() is None:
            if await self._is_ready():
                return time.monotonic() - began
            await asyncio.sleep(0.1)
        raise BenchError(f"kube-apiserver does not start: {self._log('kube-apiserver').read_text()[-2000:]}")

    async def restart_server(self) -> float:
        """End kube-apiserver, at first in order, and start it again. Returns the seconds until it is ready."""
        began = time.monotonic()
        process = self._processes.pop("kube-apiserver")
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, _ENDS_WITHIN)
        except subprocess.TimeoutExpired:  # it waits for its watches
            process.kill()
            await asyncio.to_thread(process.wait)
        await self.start_server()
        return time.monotonic() - began

    async def compact(self) -> int:
        """Compact etcd up to now: older resourceVersions are gone. Returns the revision."""
        status = await self._etcd("maintenance/status", {})
        revision = int(status["header"]["revision"])
        await self._etcd("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def _start(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        return self._processes[name]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    async def _etcd(self, path: str, body: Object) -> Any:
        async with self._session.post(f"{control_plane.ETCD}/v3/{path}", json=body) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def _is_ready(self) -> bool:
        try:
            async with self._session.get(self._url("/readyz"), ssl=self._tls) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    # ---- objects -------------------------------------------------------------------------------------------------

    async def create(self, items: Iterable[Object]) -> None:
        """Create objects, several at once."""
        async with asyncio.TaskGroup() as group:
            for item in items:
                await self._limit.acquire()
                group.create_task(self._create(item))

    async def _create(self, item: Object) -> None:
        try:
            await self._ask("POST", _collection(item), item, accepts=201)
        finally:
            self._limit.release()

    async def replace(self, item: Object) -> None:
        """Replace an object. While the server is away, try again and again."""
        end = time.monotonic() + _AWAY_WITHIN
        while True:
            try:
                await self._ask("PUT", f"{_collection(item)}/{quote(item['metadata']['name'])}", item)
            except (aiohttp.ClientError, BenchError):
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.25)
            else:
                return

    async def list(self, collection: str) -> list[Object]:
        """All objects of a kind, from etcd."""
        listed: list[Object] = (await self._ask("GET", collection))["items"]
        return listed

    async def _ask(self, method: str, path: str, body: Object | None = None, accepts: int = 200) -> Any:
        async with self._session.request(method, self._url(path), json=body, ssl=self._tls) as answer:
            text = await answer.read()
            if answer.status != accepts:
                raise BenchError(f"{method} {path}: {answer.status} {text[:500]!r}")
        return json.loads(text)

    def _url(self, path: str) -> str:
        return f"https://{API_ADDRESS}:{PORT}{path}"


def _collection(item: Object) -> str:
    return BY_KIND[item["kind"]].collection(item["metadata"].get("namespace"))
