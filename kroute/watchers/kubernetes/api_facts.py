"""What the way to the API says: which addresses the server has, and which networks ClusterIPs come from.

The server's name is resolved again every half minute. ServiceCIDR objects (Kubernetes 1.33) are listed and not watched:
they change once in the life of a cluster, and the ClusterIPs of a new range are known with their Services. One more
watch on every node would cost the API server more than a list in ten minutes.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import structlog

from kroute.model.addresses import canonical
from kroute.model.node_facts import ApiFacts
from kroute.model.objects import List
from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.decoding import read_answer
from kroute.watchers.kubernetes.errors import ApiError, UnreachableError

log = structlog.get_logger(__name__)

RESOLVE_EVERY = 30.0
"""Seconds."""
LIST_EVERY = 600.0
SERVICE_CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"


class _RangesSpec(msgspec.Struct):
    cidrs: list[str] | None = None


class _ServiceCIDR(msgspec.Struct):
    spec: _RangesSpec = msgspec.field(default_factory=_RangesSpec)


class ApiFactsWatcher:
    """Follows both, and passes them on whenever they change. What cannot be found out stays as it was."""

    def __init__(self, api: Api, notify: Callable[[ApiFacts], None]) -> None:
        self._api = api
        self._notify = notify
        self._resolved: dict[str, frozenset[str]] = {}
        self._ranges: tuple[str, ...] = ()
        self._listed_at: float | None = None
        self._passed_on: ApiFacts | None = None
        self._complaint = ""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            before, self._resolved = self._resolved, {}
            for server in self._api.addresses:
                self._resolved[server] = await resolved(server) or before.get(server, frozenset())
            self._pass_on()
            await self._list_ranges()
            self._pass_on()
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait until the name is to be resolved again, or somebody answers of whom nothing could be asked yet.

        A connection to another address is passed on at once.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(RESOLVE_EVERY):
                while True:
                    await self._api.peers.changed.wait()
                    self._api.peers.changed.clear()
                    self._pass_on()
                    if self._listed_at is None:
                        return

    async def _list_ranges(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._listed_at is not None and now < self._listed_at + LIST_EVERY:
            return
        try:
            self._ranges = await service_ranges(self._api)
        except UnreachableError:
            return  # nobody answers: asked again soon
        except ApiError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning(
                    "service_ranges.unknown", error=str(error), next="--service-cidr, or the right to list them"
                )
        self._listed_at = now

    def _pass_on(self) -> None:
        servers = self._api.peers.recent().union(*self._resolved.values())
        facts = ApiFacts(servers, self._ranges)
        if facts != self._passed_on:
            self._passed_on = facts
            self._notify(facts)


async def read_api_facts(settings: Settings) -> ApiFacts:
    """Both as they are now; what cannot be found out is left out.

    Raises:
        ConfigurationError: the way to the API cannot be used.
    """
    async with await Api.open(settings) as api:
        try:
            ranges = await service_ranges(api)
        except ApiError:
            ranges = ()
        servers = [await resolved(server) for server in api.addresses]
        return ApiFacts(api.peers.recent().union(*servers), ranges)


async def service_ranges(api: Api) -> tuple[str, ...]:
    """The networks of the cluster's ServiceCIDR objects; none where there is no such kind.

    Raises:
        ApiError: the server does not say, or says something else.
    """
    try:
        found = read_answer(List[_ServiceCIDR], await api.get(SERVICE_CIDRS))
    except ApiError as error:
        if error.is_missing:
            return ()
        raise
    return tuple(sorted({cidr for item in found.items or () for cidr in item.spec.cidrs or ()}))


async def resolved(server: str) -> frozenset[str]:
    """The addresses of a server's URL; none while its name cannot be resolved."""
    try:
        host = urlsplit(server).hostname or ""
        if (address := canonical(host)) is not None:
            return frozenset({address})
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError, MemoryError, RuntimeError):  # no name (UnicodeError), no memory, no thread
        return frozenset()
    addresses = (canonical(str(address[0])) for *_, address in found)
    return frozenset(address for address in addresses if address is not None)
