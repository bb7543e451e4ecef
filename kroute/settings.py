"""The settings of `kroute run`, checked and typed, with their defaults. Every other module reads them from here.

A `parse_…` function reads one value as it is written on the command line, in a KROUTE_… variable or in the
configuration file. It raises ValueError with a sentence that says what is allowed. A `write_…` function does the
opposite; the command line shows the defaults of `Settings` with it.
"""

import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import NamedTuple

import msgspec

SCHEDULERS = ("rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh")
"""The schedulers of the kernel's IPVS (`net/netfilter/ipvs/ip_vs_*.c`), by the names that ipvsadm uses."""

OUR_PROXY_NAME = "kroute.io"
"""The value of the label `service.kubernetes.io/service-proxy-name` that gives a Service to kroute."""

LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
"""The ways to tell local pods from all other clients, by the names of kube-proxy's `detectLocalMode`."""

PRIMARY = "primary"
"""In `nodeport_addresses`: the node's own address of each family."""

OTHER_VIP_INTERFACES = ("kube-ipvs0", "kube-dummy-if")
"""The interfaces on which kube-proxy and kube-router bind VIPs. While kroute takes over from one of them, the addresses
there do not count as the node's own."""
INTERFACE_NAME_LIMIT = 15  # IFNAMSIZ less the closing NUL

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_BIND_ADDRESS = re.compile(r"(?:\[(?P<ip6>[^\]]+)\]|(?P<ip4>[^\[\]:]*)):(?P<port>\d{1,5})")
_PAIR = re.compile(r"(?P<source>[^/]+(?:/\d+)?):(?P<destination>[^/]+(?:/\d+)?)")


class PortRange(NamedTuple):
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class ListenAddress(NamedTuple):
    """Where to listen. An empty `host` means every address of both families."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Exemption(msgspec.Struct, frozen=True):
    """Traffic that is never masqueraded: from the network `source` to addresses that clients use in `destination`."""

    source: str
    destination: str


class IpvsTimeouts(msgspec.Struct, frozen=True):
    """IPVS connection timeouts in seconds; 0 leaves the kernel's value as it is."""

    tcp: int = 0
    tcpfin: int = 0
    udp: int = 0


class Settings(msgspec.Struct, frozen=True):
    """How this agent runs. Networks are in canonical CIDR form, periods in seconds.

    `nodeport_addresses` are networks, or PRIMARY alone; empty means every address of the node. `snat_source` is
    "masquerade" (the kernel chooses) or "node-ip". A bind address of None opens no port. `metrics_services` is how many
    Services have their own metrics. `ipvs_estimation` and `ipvs_estimation_nice`: None leaves the kernel's value.

    `max_virtual_servers` and `max_backends` bound what one Service may ask for; the latter counts the real servers and
    source ranges of all its virtual servers together.

    The default ports of `healthz_bind_address` and `metrics_bind_address` are kube-proxy's, so that probes, scrapers
    and firewalls need no change. The default protected ports are those of SSH, etcd, the API server, the kubelet, and
    the health checks of service proxies.
    """

    node_name: str
    kubeconfig: Path | None = None
    master: str | None = None
    manifests: Path | None = None
    node_ips: tuple[str, ...] = ()
    dummy_interface: str = "kube-dummy-if"
    scheduler: str = "rr"
    service_proxy_name: str = OUR_PROXY_NAME
    nodeport_addresses: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    external_ip_ranges: tuple[str, ...] = ()
    load_balancer_ip_ranges: tuple[str, ...] = ()
    strict_external_ips: bool = False
    external_ips_on_node_addresses: bool = False
    node_address_ranges: tuple[str, ...] = ()
    serve_needed_addresses: tuple[str, ...] = ()
    protected_ports: tuple[PortRange, ...] = (
        PortRange(22, 22),
        PortRange(2379, 2380),
        PortRange(6443, 6443),
        PortRange(10250, 10250),
        PortRange(10256, 10256),
    )
    max_virtual_servers: int = 5000
    max_backends: int = 50_000
    strict_arp: bool = True
    masquerade_all: bool = False
    detect_local_mode: str = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    pod_bridge_interface: str = ""
    pod_interface_name_prefix: str = ""
    snat_source: str = "masquerade"
    hairpin: bool = True
    masquerade_exemptions: tuple[Exemption, ...] = ()
    masquerade_mark: int = 0x4000
    resync_period: float = 30.0
    drain_timeout: float = 0.0
    exclude_cidrs: tuple[str, ...] = ()
    ipvs_timeouts: IpvsTimeouts = IpvsTimeouts()
    healthz_bind_address: ListenAddress | None = ListenAddress("", 10256)
    metrics_bind_address: ListenAddress | None = ListenAddress("127.0.0.1", 10249)
    metrics_services: int = 1000
    ipvs_estimation: bool | None = None
    ipvs_estimation_nice: int | None = None
    state_dir: Path = Path("/run/kroute")
    proc_sys: Path = Path("/proc/sys")
    cleanup_on_exit: bool = False
    log_format: str = "console"
    log_level: str = "info"

    def protects(self, port: int) -> bool:
        """Whether this port is protected: no Service may use it on a node's own address."""
        return any(first <= port <= last for first, last in self.protected_ports)


DEFAULTS = Settings(node_name="")
"""The defaults. The node's name has none here: the command line takes the host's."""


def parse_duration(text: str) -> float:
    """Read `30s`, `5m`, `1h30m`, `0.5s` or a bare number of seconds."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"{text!r} is not a duration: write 30s, 5m or 1h30m")
    hours, minutes, seconds = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)


def write_duration(seconds: float) -> str:
    """Write a duration in seconds as `30s`."""
    return f"{seconds:g}s"


def parse_timeout(text: str) -> int:
    """Read an IPVS timeout: whole seconds, at most 31 days; 0 leaves the kernel's value."""
    seconds = parse_duration(text)
    if seconds != int(seconds) or seconds > 31 * 86400:
        raise ValueError(
            f"{text!r} is not an IPVS timeout: write whole seconds, at most 31 days (0s leaves the kernel's)"
        )
    return int(seconds)


def parse_networks(text: str) -> tuple[str, ...]:
    """Read networks of both families, separated by commas: `10.0.0.0/8,fd00::/64`."""
    return tuple(parse_network(part.strip()) for part in text.split(",") if part.strip())


def parse_network(text: str) -> str:
    """Read one network. Bits beyond the prefix are an error: they are usually a typing error."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a network: {error}; write ADDRESS/PREFIX, for example 10.0.0.0/8") from None


def parse_nodeport_addresses(text: str) -> tuple[str, ...]:
    """Read networks as `parse_networks` does, or the word `primary` alone."""
    if text.strip() == PRIMARY:
        return (PRIMARY,)
    try:
        return parse_networks(text)
    except ValueError as error:
        raise ValueError(f"{error}; or the word {PRIMARY} alone") from None


def parse_proxy_name(text: str) -> str:
    """Read a label's value (`metadata.labels` in the API: 1 to 63 characters, no space)."""
    if not _LABEL_VALUE.fullmatch(text):
        raise ValueError(f"{text!r} is not a label value: 1 to 63 letters, digits, '-', '_' and '.', no space")
    return text


def parse_node_ips(text: str) -> tuple[str, ...]:
    """Read at most one address of each family, separated by a comma: `192.168.123.250,fd00:123::250`."""
    addresses = tuple(_parse_address(part.strip()) for part in text.split(",") if part.strip())
    if len({":" in address for address in addresses}) != len(addresses):
        raise ValueError(f"{text!r} names two addresses of one family: give at most one IPv4 and one IPv6 address")
    return addresses


def parse_ports(text: str) -> tuple[PortRange, ...]:
    """Read ports and ranges of ports, separated by commas: `22,2379-2380`."""
    return tuple(_parse_port_range(part.strip()) for part in text.split(",") if part.strip())


def parse_listen_address(text: str) -> ListenAddress | None:
    """Read `IP:PORT`, `[IPv6]:PORT` or `:PORT`; `off` gives None.

    `0.0.0.0` and `::` both mean every address of both families, as in kube-proxy: Go listens that way.
    """
    if text == "off":
        return None
    match = _BIND_ADDRESS.fullmatch(text)
    host, port = (match["ip6"] or match["ip4"] or "", int(match["port"])) if match else ("", 0)
    try:
        address = ip_address(host) if host else None
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise ValueError(
            f"{text!r} is not an address to listen on: write IP:PORT, [IPv6]:PORT, :PORT for every address, or off"
        )
    return ListenAddress("" if address is None or address.is_unspecified else str(address), port)


def write_bind_address(address: ListenAddress | None) -> str:
    """Write where to listen. Every address of both families is written `0.0.0.0`, as kube-proxy's operators know it."""
    return "off" if address is None else str(address._replace(host=address.host or "0.0.0.0"))


def write_switch(value: bool | None) -> str:
    """Write `on` or `off`; None is `leave`."""
    return "leave" if value is None else "on" if value else "off"


def parse_exemption(text: str) -> Exemption:
    """Read `SOURCE:DESTINATION`: two networks of one family. IPv6 networks must have a prefix length."""
    match = _PAIR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a pair of networks: write SOURCE/PREFIX:DESTINATION/PREFIX")
    source, destination = parse_network(match["source"]), parse_network(match["destination"])
    if (":" in source) != (":" in destination):
        raise ValueError(f"{text!r} mixes IPv4 and IPv6: both networks must be of one family")
    return Exemption(source, destination)


def parse_mark(text: str) -> int:
    """Read a packet mark: a number of 32 bits with one bit set, decimal or with 0x."""
    try:
        mark = int(text, 0)
    except ValueError:
        mark = 0
    if not 0 < mark < 1 << 32 or mark.bit_count() != 1:
        raise ValueError(f"{text!r} is not a packet mark: write a single bit of 32, for example 0x4000")
    return mark


def parse_interface(text: str) -> str:
    """Read a network interface's name."""
    if not text or len(text) > INTERFACE_NAME_LIMIT or re.search(r"[\s/:]", text) or text in {".", ".."}:
        raise ValueError(f"{text!r} is not an interface name: 1 to {INTERFACE_NAME_LIMIT} characters, no space, / or :")
    return text


def _parse_port_range(text: str) -> PortRange:
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    ports = PortRange(int(match[1]), int(match[2] or match[1])) if match else PortRange(0, 0)
    if not 1 <= ports.first <= ports.last <= 65535:
        raise ValueError(f"{text!r} is no port and no range of ports: write 22 or 2379-2380, from 1 to 65535")
    return ports


def _parse_address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address: write it like 192.168.123.250 or fd00::1") from None
