"""IPVS virtual servers, real servers and the changes that can be made to them, as plain values."""

import socket
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kroute.base.forwarding import MASQUERADING
from kroute.base.wording import host_port
from kroute.kernel.errors import Change

VirtualServerKey: TypeAlias = tuple[int, str, int]
"""IP protocol number, address in canonical text, port."""
RealServerKey: TypeAlias = tuple[str, int]
"""Address in canonical text, port."""

PROTOCOL_NAMES = {6: "TCP", 17: "UDP", 132: "SCTP"}

FLAG_PERSISTENT = 0x1
FLAG_ONE_PACKET = 0x4
FLAG_SCHEDULER_1 = 0x8
FLAG_SCHEDULER_2 = 0x10
FLAG_SCHEDULER_3 = 0x20
OPTION_FLAGS = FLAG_ONE_PACKET | FLAG_SCHEDULER_1 | FLAG_SCHEDULER_2 | FLAG_SCHEDULER_3
"""The flags that can be chosen. The kernel also keeps FLAG_PERSISTENT, which the timeout implies, and a private one."""


def describe_virtual_server(key: VirtualServerKey) -> str:
    """`TCP 10.0.0.1:80`."""
    protocol, address, port = key
    return f"{PROTOCOL_NAMES.get(protocol, protocol)} {host_port(address, port)}"


class VirtualServerOptions(NamedTuple):
    """How a virtual server chooses a real server: the scheduler, its flags (0x8, 0x10, 0x20), and persistence.

    `persistence_timeout` is in seconds; 0 means no persistence. Clients in one network of the prefix length
    `persistence_prefix` get the same real server; it has no meaning without a timeout.
    """

    scheduler: str = "rr"
    flags: int = 0
    persistence_timeout: int = 0
    persistence_prefix: int = 0


class RealServerState(NamedTuple):
    """A real server as the kernel has it, with its active and inactive connections.

    `method` is Masq, Route, Tunnel or Local.
    """

    weight: int
    active: int = 0
    inactive: int = 0
    method: str = MASQUERADING


OptionsByServer: TypeAlias = dict[VirtualServerKey, VirtualServerOptions]
"""The options of some virtual servers."""
StatesByServer: TypeAlias = dict[VirtualServerKey, dict[RealServerKey, RealServerState]]
"""The real servers of some virtual servers."""


class VirtualServerState(NamedTuple):
    """A virtual server as the kernel has it."""

    options: VirtualServerOptions
    real_servers: dict[RealServerKey, RealServerState]


class VirtualServerChange(Change, frozen=True):
    """A change of a virtual server, or of one of its real servers."""

    key: VirtualServerKey

    @property
    def server(self) -> str:
        """The virtual server in words."""
        return describe_virtual_server(self.key)


class RealServerChange(VirtualServerChange, frozen=True):
    """A change of a real server."""

    real_server: RealServerKey

    @property
    def endpoint(self) -> str:
        """The real server in words."""
        return host_port(*self.real_server)


class AddVirtualServer(VirtualServerChange, frozen=True):
    """Make a virtual server. Refused: EEXIST if it exists, ENOENT if the kernel does not have the scheduler."""

    words = "add virtual server {change.server} (scheduler {change.options.scheduler})"

    options: VirtualServerOptions


class SetVirtualServer(VirtualServerChange, frozen=True):
    """Change the options; connections stay. Refused: ESRCH if it does not exist, ENOENT as for AddVirtualServer."""

    words = "edit virtual server {change.server} (scheduler {change.options.scheduler})"

    options: VirtualServerOptions


class DeleteVirtualServer(VirtualServerChange, frozen=True):
    """Delete a virtual server with its real servers. Refused: ESRCH if it does not exist."""

    words = "delete virtual server {change.server}"


class AddRealServer(RealServerChange, frozen=True):
    """Add a real server by Masq, Route or Tunnel. Refused: EEXIST if it exists, ESRCH without the virtual server."""

    words = "add real server {change.endpoint} to {change.server}"

    weight: int
    method: str = MASQUERADING


class SetRealServer(RealServerChange, frozen=True):
    """Change weight and method; connections stay. Refused: ENOENT if it is missing, ESRCH without virtual server."""

    words = "set weight {change.weight} of real server {change.endpoint} of {change.server}"

    weight: int
    method: str = MASQUERADING


class DeleteRealServer(RealServerChange, frozen=True):
    """Delete a real server. Refused: ENOENT if it is missing, ESRCH without the virtual server."""

    words = "delete real server {change.endpoint} of {change.server}"


class DeleteMarkServer(Change, frozen=True):
    """Delete the virtual server of a firewall mark, with its real servers. Other programs make such; kroute none."""

    family: int
    mark: int

    def __str__(self) -> str:
        return f"delete virtual server of mark {self.mark:#x} ({'IPv6' if self.family == socket.AF_INET6 else 'IPv4'})"


IpvsChange: TypeAlias = (
    AddVirtualServer | SetVirtualServer | DeleteVirtualServer | AddRealServer | SetRealServer | DeleteRealServer
)


class Traffic(NamedTuple):
    """Scheduled connections, and packets and bytes from clients (in) and to them (out), since the object was made.

    The kernel sums up its processors' counters every two seconds (net/netfilter/ipvs/ip_vs_est.c), so the numbers may
    be two seconds old.

    Real servers with direct routing answer the clients directly, so their answers do not count as packets or bytes out.
    """

    connections: int = 0
    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class RealServerTraffic(NamedTuple):
    """What has gone through a real server since it was added, and how many of its connections are active now."""

    traffic: Traffic = Traffic()
    active: int = 0


TrafficByServer: TypeAlias = dict[VirtualServerKey, dict[RealServerKey, RealServerTraffic]]
"""The traffic of the real servers of some virtual servers."""


class SyncRole(IntEnum):
    """IP_VS_STATE_MASTER and IP_VS_STATE_BACKUP of include/uapi/linux/ip_vs.h."""

    MASTER = 1
    BACKUP = 2


class SyncDaemon(NamedTuple):
    """A daemon that copies connections between directors (net/netfilter/ipvs/ip_vs_sync.c).

    A master sends the state of its connections to a multicast group (224.0.0.81, port 8848) on one interface. A backup
    accepts what masters with its synchronization id send. A network namespace has at most one daemon of each role.
    `sync_id` is 1 to 255, and the same on all machines that share connections."""

    role: SyncRole
    interface: str
    sync_id: int

    def __str__(self) -> str:
        return f"IPVS {self.role.name.lower()} synchronization daemon on {self.interface}"
