"""Reads the kernel's IPVS table as a whole, and changes it in batches."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from kroute.kernel import modules
from kroute.kernel.errors import Failure, KernelError, none_if_refused, raise_refusal
from kroute.kernel.ipvs.messages import (
    CMD_DEL_DAEMON,
    CMD_GET_DAEMON,
    CMD_NEW_DAEMON,
    FAMILY_NAME,
    encode_change,
    encode_daemon,
    encode_dump,
    encode_mark_deletion,
    encode_query,
    encode_real_server_dump,
    encode_timeouts,
    encode_timeouts_query,
    parse_daemon,
    parse_mark,
    parse_real_server,
    parse_real_server_traffic,
    parse_timeouts,
    parse_traffic,
    parse_virtual_server,
)
from kroute.kernel.ipvs.objects import (
    DeleteMarkServer,
    IpvsChange,
    OptionsByServer,
    RealServerKey,
    RealServerState,
    StatesByServer,
    SyncDaemon,
    Traffic,
    TrafficByServer,
    VirtualServerKey,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.kernel.ipvs.outlines import OutlineReader, Outlines, read_real_servers
from kroute.kernel.ipvs.table import pages, parse_table
from kroute.kernel.netlink.client import ENCODE_SLICE, NetlinkClient, Parsed, find_family, listed_once, only
from kroute.kernel.netlink.netlink_socket import NETLINK_GENERIC

MODULE = "ip_vs"
TABLE = Path("/proc/net/ip_vs")


class Ipvs(NetlinkClient):
    """The IPVS table of the calling process's network namespace.

    If the module ip_vs was removed meanwhile, it is loaded again. Its table is empty then, and its family has another
    number, without which the kernel would answer every request with ENOENT.
    """

    protocol = NETLINK_GENERIC

    def __init__(self) -> None:
        super().__init__()
        self._family = 0
        self._outlines = OutlineReader()

    async def open(self) -> None:
        """Open the socket and find the IPVS family. Raises KernelError if ip_vs is not loaded."""
        await super().open()
        try:
            self._family = await find_family(self.netlink, FAMILY_NAME)
        except KernelError:
            await self.close()
            raise

    async def read(self) -> dict[VirtualServerKey, VirtualServerState]:
        """All virtual servers but those of firewall marks."""
        return {key: state async for part in self.scan(await self._read_options()) for key, state in part}

    async def scan(
        self, expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        """All virtual servers but those of firewall marks, foreign ones too, with real servers and connection counts.

        They come in parts as the file is read, so the table is never in memory as a whole, and other tasks run between
        two parts. /proc/net/ip_vs is read once. If a virtual server has options that the file does not print, a netlink
        dump of the virtual servers is read too. A virtual server that is deleted between the two is left out.

        The kernel writes that file page by page. It counts the start of a page among this network namespace's virtual
        servers, but looks it up among those of all namespaces (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_next and
        ip_vs_info_array). If other namespaces have virtual servers, the file omits some of ours and repeats others. The
        same happens when virtual servers are added or deleted between two pages, and since Linux 7 while it enlarges or
        shrinks its table. So those of `expected` that the file omits are looked up by netlink, and come as the last
        part.
        """
        if not _table_exists():
            await self._find_again()
        missing = set(expected)
        options: dict[VirtualServerKey, VirtualServerOptions] | None = None
        for sections in parse_table(pages(TABLE)):
            if options is None and not all(section.is_complete for section in sections):
                options = await self._read_options()
            part = [
                (key, state if is_complete or options is None else state._replace(options=options[key]))
                for key, state, is_complete in sections
                if is_complete or options is None or key in options
            ]
            missing.difference_update(key for key, _ in part)
            yield part
            await asyncio.sleep(0)
        if missing:
            yield await self._look_up(missing)

    async def real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        """The real servers of these virtual servers: one netlink dump each. One that does not exist has none."""
        return {key: await self._real_servers_of(key) for key in keys}

    async def ipv4_real_servers(self, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        """Those of IPv4 virtual servers, without real servers of IPv6: one system call each, and no other task runs."""
        return read_real_servers(keys)

    async def options(self, keys: Sequence[VirtualServerKey]) -> OptionsByServer:
        """The options of those of these virtual servers that exist: one request each."""
        found: OptionsByServer = {}
        for key in keys:
            asked = self._ask(partial(encode_query, key=key), parse_virtual_server)
            found.update(await none_if_refused(asked, errno.ESRCH) or ())
        return found

    async def outlines(self) -> Outlines:
        """The outlines of all IPv4 virtual servers, in one system call."""
        return self._outlines.read()

    async def traffic(self) -> dict[VirtualServerKey, Traffic]:
        """The traffic of each virtual server but those of firewall marks: one dump."""
        return dict(await self._ask(encode_dump, parse_traffic))

    async def real_server_traffic(self, keys: Sequence[VirtualServerKey]) -> TrafficByServer:
        """The traffic of these virtual servers' real servers, without those whose answers bypass this machine."""
        found = {}
        for key in keys:
            answers = self._ask(partial(encode_real_server_dump, key=key), partial(parse_real_server_traffic, key=key))
            found[key] = dict(await answers)
        return found

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Make the changes in order; those that the kernel refuses do not stop the others.

        The kernel loads the module of a scheduler that it does not have yet (ip_vs_NAME).
        """
        failures: list[Failure[IpvsChange]] = []
        for start in range(0, len(changes), ENCODE_SLICE):
            part = changes[start : start + ENCODE_SLICE]
            refused = await self._send(partial(_encode_changes, part))
            failures += [Failure(part[index], number) for index, number in refused.items()]
        return failures

    async def marks(self) -> list[tuple[int, int]]:
        """The address family and mark of each virtual server that has a firewall mark in place of an address."""
        return sorted(await self._ask(encode_dump, parse_mark))

    async def delete_marks(self, deletions: Sequence[DeleteMarkServer]) -> list[Failure[DeleteMarkServer]]:
        """Delete virtual servers of marks. One that no longer exists is no failure."""
        return await self.write_each(deletions, partial(encode_mark_deletion, self._family), {errno.ESRCH})

    async def _look_up(self, keys: Collection[VirtualServerKey]) -> list[tuple[VirtualServerKey, VirtualServerState]]:
        """Look up these virtual servers by netlink; returns those that exist."""
        options = await self._read_options()
        there = [key for key in keys if key in options]
        return [(key, VirtualServerState(options[key], await self._real_servers_of(key))) for key in there]

    async def _real_servers_of(self, key: VirtualServerKey) -> dict[RealServerKey, RealServerState]:
        query = partial(encode_real_server_dump, key=key)
        found = dict(await self._ask(query, partial(parse_real_server, key=key)))
        await asyncio.sleep(0)
        return found

    async def _read_options(self) -> dict[VirtualServerKey, VirtualServerOptions]:
        """The options of all virtual servers, listed again if Linux 7 resizes its table meanwhile."""

        async def read(found: dict[VirtualServerKey, VirtualServerOptions]) -> int:
            listed = await self._ask(encode_dump, parse_virtual_server)
            found.update(listed)
            return len(listed)

        return await listed_once("the IPVS table", read)

    async def set_timeouts(self, tcp: int, tcpfin: int, udp: int) -> None:
        """Set the connection timeouts, in seconds; for 0 the kernel keeps its own. Raises KernelError."""
        refused = await self._send(lambda family: [encode_timeouts(family, tcp, tcpfin, udp)])
        limits = "choose values between 1 and 2147483 s"
        raise_refusal(refused, f"set the IPVS timeouts {tcp}/{tcpfin}/{udp} s", limits)

    async def timeouts(self) -> tuple[int, int, int]:
        """The connection timeouts in seconds: tcp, tcpfin, udp."""
        return only(await self._ask(encode_timeouts_query, parse_timeouts))

    async def sync_daemons(self) -> set[SyncDaemon]:
        """The connection synchronization daemons that are running: at most one of each role."""
        return set(await self._ask(partial(encode_dump, command=CMD_GET_DAEMON), parse_daemon))

    async def start_sync_daemon(self, daemon: SyncDaemon) -> None:
        """Start a daemon. Raises KernelError: EEXIST if one of its role is running, ENODEV without its interface."""
        refused = await self._send(lambda family: [encode_daemon(family, CMD_NEW_DAEMON, daemon)])
        raise_refusal(refused, f"start the {daemon}", "trying later")

    async def stop_sync_daemon(self, daemon: SyncDaemon) -> None:
        """Stop the daemon of this role, if one is running."""
        refused = await self._send(lambda family: [encode_daemon(family, CMD_DEL_DAEMON, daemon)])
        raise_refusal(refused, f"stop the {daemon}", "trying later", {errno.ESRCH})

    async def _ask(self, encode: Callable[[int], bytes], parse: Callable[[bytes], Parsed | None]) -> list[Parsed]:
        """The answers to a request, which `encode` makes for the family's number."""
        try:
            return await self.netlink.request(encode(self._family), parse)
        except KernelError as error:
            if error.errno != errno.ENOENT or not await self._find_again():
                raise
        return await self.netlink.request(encode(self._family), parse)

    async def _send(self, encode: Callable[[int], list[bytes]]) -> dict[int, int]:
        """Send messages as `NetlinkSocket.transact` does. ENOENT is also what a missing scheduler is refused with."""
        refused = await self.netlink.transact(encode(self._family))
        if errno.ENOENT in refused.values() and await self._find_again():
            return await self.netlink.transact(encode(self._family))
        return refused

    async def _find_again(self) -> bool:
        """Look up the family, loading the module if it is gone; returns whether it has another number than before.

        Raises KernelError if there is none.
        """
        before = self._family
        await modules.load([MODULE])
        self._family = await find_family(self.netlink, FAMILY_NAME)
        return self._family != before


def _encode_changes(changes: Sequence[IpvsChange], family: int) -> list[bytes]:
    return [encode_change(family, change) for change in changes]


def _table_exists() -> bool:
    return TABLE.exists()
