"""IPVS virtual servers, real servers and the changes that can be made to them, as plain values."""

from typing import NamedTuple, TypeAlias

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
MASQUERADING = "Masq"
"""How packets reach a real server: with its address as their destination. The kernel's word for it."""
DIRECT_ROUTING = "Route"
"""Packets reach the real server as they are, with its MAC address, and the answers do not come back this way."""
OPTION_FLAGS = FLAG_ONE_PACKET | FLAG_SCHEDULER_1 | FLAG_SCHEDULER_2 | FLAG_SCHEDULER_3
"""The flags that are a choice; the kernel also keeps FLAG_PERSISTENT (the timeout says it) and a private one."""


def describe_endpoint(address: str, port: int) -> str:
    """`10.0.0.1:80` or `[fd00::1]:80`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def describe_virtual_server(key: VirtualServerKey) -> str:
    """`TCP 10.0.0.1:80`."""
    protocol, address, port = key
    return f"{PROTOCOL_NAMES.get(protocol, protocol)} {describe_endpoint(address, port)}"


class VirtualServerOptions(NamedTuple):
    """How a virtual server chooses: scheduler, its flags (0x8, 0x10, 0x20), persistence.

    `persistence_timeout` is in seconds, 0 for none; `persistence_prefix` is the length of the client network that is
    kept together, and means something only with a timeout.
    """

    scheduler: str = "rr"
    flags: int = 0
    persistence_timeout: int = 0
    persistence_prefix: int = 0


class RealServerState(NamedTuple):
    """A real server as the kernel has it; `method` is Masq, Route, Tunnel or Local."""

    weight: int
    active: int = 0
    inactive: int = 0
    method: str = MASQUERADING


class VirtualServerState(NamedTuple):
    """A virtual server as the kernel has it."""

    options: VirtualServerOptions
    real_servers: dict[RealServerKey, RealServerState]


class AddVirtualServer(NamedTuple):
    """Refused: EEXIST when it is there, ENOENT when the kernel has no such scheduler."""

    key: VirtualServerKey
    options: VirtualServerOptions

    def __str__(self) -> str:
        return f"add virtual server {describe_virtual_server(self.key)} (scheduler {self.options.scheduler})"


class SetVirtualServer(NamedTuple):
    """Change the options in place; connections stay. Refused: ESRCH when it is not there, ENOENT as above."""

    key: VirtualServerKey
    options: VirtualServerOptions

    def __str__(self) -> str:
        return f"edit virtual server {describe_virtual_server(self.key)} (scheduler {self.options.scheduler})"


class DeleteVirtualServer(NamedTuple):
    """Its real servers go with it. Refused: ESRCH when it is not there."""

    key: VirtualServerKey

    def __str__(self) -> str:
        return f"delete virtual server {describe_virtual_server(self.key)}"


class AddRealServer(NamedTuple):
    """`method` is Masq or Route. Refused: EEXIST when it is there, ESRCH when its virtual server is not."""

    key: VirtualServerKey
    real_server: RealServerKey
    weight: int
    method: str = MASQUERADING

    def __str__(self) -> str:
        return f"add real server {describe_endpoint(*self.real_server)} to {describe_virtual_server(self.key)}"


class SetRealServer(NamedTuple):
    """Change weight and method; connections stay. Refused: ENOENT when it is not there, ESRCH as above."""

    key: VirtualServerKey
    real_server: RealServerKey
    weight: int
    method: str = MASQUERADING

    def __str__(self) -> str:
        endpoint = describe_endpoint(*self.real_server)
        return f"set weight {self.weight} of real server {endpoint} of {describe_virtual_server(self.key)}"


class DeleteRealServer(NamedTuple):
    """Refused: ENOENT when it is not there, ESRCH when its virtual server is not."""

    key: VirtualServerKey
    real_server: RealServerKey

    def __str__(self) -> str:
        return f"delete real server {describe_endpoint(*self.real_server)} of {describe_virtual_server(self.key)}"


IpvsChange: TypeAlias = (
    AddVirtualServer | SetVirtualServer | DeleteVirtualServer | AddRealServer | SetRealServer | DeleteRealServer
)
