"""The IPVS table of a fake kernel."""

import errno
import struct
from collections.abc import AsyncIterator, Collection, Sequence

from kroute.base.forwarding import MASQUERADING
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipvs.objects import (
    FLAG_PERSISTENT,
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    OptionsByServer,
    RealServerState,
    RealServerTraffic,
    SetRealServer,
    SetVirtualServer,
    StatesByServer,
    SyncDaemon,
    Traffic,
    TrafficByServer,
    VirtualServerKey,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.kernel.ipvs.outlines import Outlines, outline_key
from tests.fakes.client import FakeClient

OUTLINE = struct.Struct("@I16s2I4sI")
"""Of struct ip_vs_service_entry: firewall mark, scheduler, flags, timeout, netmask, number of real servers."""
ENTRY_SIZE = 104
"""Bytes of struct ip_vs_service_entry, with its statistics."""


def encode_outline(key: VirtualServerKey, options: VirtualServerOptions, real_servers: int) -> bytes:
    """The kernel's entry for a virtual server that had no traffic, without flags that are the kernel's own."""
    prefix = options.persistence_prefix if options.persistence_timeout else 32
    netmask = ((1 << 32) - (1 << (32 - prefix))).to_bytes(4, "big")
    flags = options.flags | (FLAG_PERSISTENT if options.persistence_timeout else 0)
    rest = OUTLINE.pack(0, options.scheduler.encode(), flags, options.persistence_timeout, netmask, real_servers)
    return (outline_key(key) + rest).ljust(ENTRY_SIZE, b"\0")


class FakeIpvs(FakeClient):
    """Same shape as kroute.kernel.ipvs.client.Ipvs."""

    async def read(self) -> dict[VirtualServerKey, VirtualServerState]:
        self.check_open()
        return {
            key: VirtualServerState(state.options, dict(state.real_servers))
            for key, state in self.kernel.virtual_servers.items()
        }

    async def scan(
        self, expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        for key, state in (await self.read()).items():
            if key not in self.kernel.left_out or key in expected:
                yield [(key, state)]

    async def real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        self.check_open()
        there = self.kernel.virtual_servers
        return {key: dict(there[key].real_servers) if key in there else {} for key in keys}

    async def ipv4_real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        assert not any(":" in address for _, address, _ in keys)
        return await self.real_servers(keys)

    async def options(self, keys: Sequence[VirtualServerKey]) -> OptionsByServer:
        self.check_open()
        there = self.kernel.virtual_servers
        return {key: there[key].options for key in keys if key in there}

    async def outlines(self) -> Outlines:
        self.check_open()
        ipv4 = ((key, it) for key, it in self.kernel.virtual_servers.items() if ":" not in key[1])
        return Outlines(b"".join(encode_outline(key, it.options, len(it.real_servers)) for key, it in ipv4))

    async def real_server_traffic(self, keys: Sequence[VirtualServerKey]) -> TrafficByServer:
        return {
            key: {
                server: RealServerTraffic(self.kernel.traffic.get((key, server), Traffic()), state.active)
                for server, state in found.items()
                if state.method == MASQUERADING
            }
            for key, found in (await self.real_servers(keys)).items()
        }

    async def traffic(self) -> dict[VirtualServerKey, Traffic]:
        self.check_open()
        return dict.fromkeys(self.kernel.virtual_servers, Traffic())

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        self.check_open()
        failures = []
        for change in changes:
            number = self.kernel.refusal(change) or self._make(change)
            if number:
                failures.append(Failure(change, number))
            else:
                self.kernel.writes.append(change)
        return failures

    async def set_timeouts(self, tcp: int, tcpfin: int, udp: int) -> None:
        self.check_open()
        self.kernel.operate("set IPVS timeouts", f"{tcp} {tcpfin} {udp}")
        old = self.kernel.timeouts
        self.kernel.timeouts = (tcp or old[0], tcpfin or old[1], udp or old[2])

    async def timeouts(self) -> tuple[int, int, int]:
        self.check_open()
        return self.kernel.timeouts

    async def sync_daemons(self) -> set[SyncDaemon]:
        self.check_open()
        return set(self.kernel.sync_daemons.values())

    async def start_sync_daemon(self, daemon: SyncDaemon) -> None:
        self.check_open()
        if daemon.role in self.kernel.sync_daemons:
            raise KernelError(f"cannot start the {daemon}: it runs", errno=errno.EEXIST)
        if daemon.interface not in self.kernel.links:
            raise KernelError(f"cannot start the {daemon}: no such link", errno=errno.ENODEV)
        self.kernel.operate("start", str(daemon))
        self.kernel.sync_daemons[daemon.role] = daemon

    async def stop_sync_daemon(self, daemon: SyncDaemon) -> None:
        self.check_open()
        self.kernel.operate("stop", str(daemon))
        self.kernel.sync_daemons.pop(daemon.role, None)

    def set_connections(self, key: VirtualServerKey, real_server: tuple[str, int], active: int, inactive: int) -> None:
        """Set a real server's connections, as clients connect or leave."""
        state = self.kernel.virtual_servers[key].real_servers
        state[real_server] = state[real_server]._replace(active=active, inactive=inactive)

    def _make(self, change: IpvsChange) -> int:
        if isinstance(change, AddVirtualServer | SetVirtualServer | DeleteVirtualServer):
            return self._make_virtual_server(change)
        return self._make_real_server(change)

    def _make_virtual_server(self, change: AddVirtualServer | SetVirtualServer | DeleteVirtualServer) -> int:
        servers = self.kernel.virtual_servers
        exists = change.key in servers
        if isinstance(change, AddVirtualServer) and exists:
            return errno.EEXIST
        if not isinstance(change, AddVirtualServer) and not exists:
            return errno.ESRCH
        if isinstance(change, DeleteVirtualServer):
            del servers[change.key]
            return 0
        if change.options.scheduler not in self.kernel.schedulers:
            return errno.ENOENT
        kept = servers[change.key].real_servers if exists else {}
        servers[change.key] = VirtualServerState(_as_read(change.options), kept)
        return 0

    def _make_real_server(self, change: AddRealServer | SetRealServer | DeleteRealServer) -> int:
        if change.key not in self.kernel.virtual_servers:
            return errno.ESRCH
        real_servers = self.kernel.virtual_servers[change.key].real_servers
        exists = change.real_server in real_servers
        if isinstance(change, AddRealServer):
            if exists:
                return errno.EEXIST
            self._add_in_front(change)
            return 0
        if not exists:
            return errno.ENOENT
        if isinstance(change, SetRealServer):
            real_servers[change.real_server] = real_servers[change.real_server]._replace(
                weight=change.weight, method=change.method
            )
        else:
            self.kernel.real_server_trash[change.key, change.real_server] = real_servers.pop(change.real_server)
        return 0

    def _add_in_front(self, change: AddRealServer) -> None:
        """Add a real server in front of the others (`list_add_rcu`), with the connections that it had when it left."""
        real_servers = self.kernel.virtual_servers[change.key].real_servers
        before = self.kernel.real_server_trash.pop((change.key, change.real_server), RealServerState(0))
        others = dict(real_servers)
        real_servers.clear()
        real_servers[change.real_server] = before._replace(weight=change.weight, method=change.method)
        real_servers.update(others)


def _as_read(options: VirtualServerOptions) -> VirtualServerOptions:
    """The options as the kernel returns them: without a timeout, the prefix length is not kept."""
    return options if options.persistence_timeout else options._replace(persistence_prefix=0)
