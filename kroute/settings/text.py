"""Settings as text: on the command line, in a KROUTE_… variable or in the configuration file.

A `parse_…` function reads one value. It raises ValueError with a sentence that says what is allowed. A `write_…`
function does the opposite; the command line shows the defaults of `Settings` with it.
"""

import re
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kroute.settings import (
    DEFAULTS,
    PRIMARY,
    Exemption,
    ListenAddress,
    PortRange,
    Settings,
)

_LONGEST_TIMEOUT = (1 << 31) // 1000
"""Seconds. The kernel counts these timeouts in jiffies in 31 bits (`proc_dointvec_jiffies`), at most 1,000 a second."""

INTERFACE_NAME_LIMIT = 15  # IFNAMSIZ less the closing NUL
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")
_PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?) ?%")
LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CLASS = re.compile(rf"(?:[a-z0-9][-a-z0-9.]{{0,252}}/)?{LABEL_VALUE.pattern}")
_BIND_ADDRESS = re.compile(r"(?:\[(?P<ip6>[^\]]+)\]|(?P<ip4>[^\[\]:]*)):(?P<port>\d{1,5})")
_USER = re.compile(r"(?<=//)[^/@]*@")
_PAIR = re.compile(r"(?P<source>[^/]+(?:/\d+)?):(?P<destination>[^/]+(?:/\d+)?)")


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


def parse_share(text: str) -> float:
    """Read a part of one processor as a percentage: `0.1%` is 0.001."""
    match = _PERCENTAGE.fullmatch(text)
    if match is None or float(match[1]) > 100:
        raise ValueError(f"{text!r} is not a part of a processor: write a percentage from 0% to 100%, such as 0.1%")
    return float(match[1]) / 100


def parse_timeout(text: str) -> int:
    """Read an IPVS timeout: whole seconds, at most 31 days; 0 leaves the kernel's value."""
    seconds = parse_duration(text)
    if seconds != int(seconds) or seconds > 31 * 86400:
        raise ValueError(
            f"{text!r} is not an IPVS timeout: write whole seconds, at most 31 days (0s leaves the kernel's)"
        )
    return int(seconds)


def parse_conntrack_timeout(text: str) -> int:
    """Read a timeout of the connection tracker. Parts of a second are left out, as kube-proxy does; 0 is "as it is"."""
    seconds = parse_duration(text)
    if seconds > _LONGEST_TIMEOUT:
        raise ValueError(f"{text!r} is not a conntrack timeout: write at most 24 days (0s leaves the kernel's)")
    return int(seconds)


def parse_networks(text: str) -> tuple[str, ...]:
    """Read networks of both families, separated by commas: `10.0.0.0/8,fd00::/64`."""
    return tuple(dict.fromkeys(map(parse_network, _elements(text))))


def parse_network(text: str) -> str:
    """Read one network. Bits beyond the prefix are an error: they are usually a typing error."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a network: {error}; write ADDRESS/PREFIX, for example 10.0.0.0/8") from None


def parse_nodeport_addresses(text: str) -> tuple[str, ...]:
    """Read networks as `parse_networks` does, or the word `primary` alone."""
    if set(_elements(text.lower())) == {PRIMARY}:
        return (PRIMARY,)
    try:
        return parse_networks(text)
    except ValueError as error:
        raise ValueError(f"{error}; or the word {PRIMARY} alone") from None


def parse_proxy_name(text: str) -> str:
    """Read a label's value (`metadata.labels` in the API: 1 to 63 characters, no space)."""
    if not LABEL_VALUE.fullmatch(text):
        raise ValueError(f"{text!r} is not a label value: 1 to 63 letters, digits, '-', '_' and '.', no space")
    return text


def parse_load_balancer_classes(text: str) -> tuple[str, ...]:
    """Read values of `loadBalancerClass`, separated by commas: names with or without a prefix (`example.com/name`)."""
    classes = tuple(dict.fromkeys(_elements(text)))
    for name in classes:
        if not _CLASS.fullmatch(name):
            raise ValueError(f"{name!r} is not a loadBalancerClass: write a name like example.com/internal, or default")
    return classes


def parse_servers(text: str) -> tuple[str, ...]:
    """Read the URLs of API servers, separated by commas: `https://10.0.0.1:6443,https://10.0.0.2:6443`.

    All have one scheme: a token that is sent by TLS is not sent in clear text when that server fails.
    """
    servers = tuple(dict.fromkeys(map(_parse_server, _elements(text))))
    if len({urlsplit(server).scheme for server in servers}) > 1:
        raise ValueError(f"{text!r} mixes http:// and https://: all addresses must have one scheme")
    return servers


def parse_node_ips(text: str) -> tuple[str, ...]:
    """Read at most one address of each family, separated by a comma: `192.168.123.250,fd00:123::250`."""
    addresses = tuple(dict.fromkeys(map(parse_address, _elements(text))))
    if len({":" in address for address in addresses}) != len(addresses):
        raise ValueError(f"{text!r} names two addresses of one family: give at most one IPv4 and one IPv6 address")
    return addresses


def parse_router_ips(text: str) -> tuple[str, ...]:
    """Read addresses of routers, separated by commas."""
    return tuple(map(parse_address, _elements(text)))


def parse_router_id(text: str) -> str:
    """Read a BGP router id: an IPv4 address that is not 0."""
    try:
        number = int(IPv4Address(text))
    except ValueError:
        number = 0
    if not number:
        raise ValueError(f"{text!r} is not a router id: write one like an IPv4 address, such as 10.0.0.1")
    return text


def parse_asns(text: str) -> tuple[int, ...]:
    """Read AS numbers, separated by commas. Some may be equal."""
    return tuple(_number(element, 1, (1 << 32) - 2, "an AS number") for element in _elements(text))


def parse_router_ports(text: str) -> tuple[int, ...]:
    """Read ports, separated by commas; 0: the usual one. Some may be equal."""
    return tuple(_number(element, 0, 65535, "a port") for element in _elements(text))


def parse_directory(text: str) -> Path:
    """Read the absolute path of a directory, which need not exist yet."""
    if not re.fullmatch(r"/[A-Za-z0-9._/-]*", text):
        raise ValueError(f"{text!r} is not a directory: write an absolute path, such as /etc/cni/net.d")
    return Path(text)


def parse_ports(text: str) -> tuple[PortRange, ...]:
    """Read ports and ranges of ports, separated by commas: `22,2379-2380`."""
    return tuple(dict.fromkeys(map(_parse_port_range, _elements(text))))


def parse_listen_address(text: str) -> ListenAddress | None:
    """Read `IP:PORT`, `[IPv6]:PORT` or `:PORT`; `off` gives None.

    `0.0.0.0` and `::` both mean every address of both families, as in kube-proxy: Go listens that way.
    """
    if text.lower() == "off":
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


def parse_exemptions(text: str) -> tuple[Exemption, ...]:
    """Read pairs of networks, separated by commas."""
    return tuple(dict.fromkeys(map(parse_exemption, _elements(text))))


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


def _elements(text: str) -> list[str]:
    """The elements of a list, separated by commas or spaces."""
    return text.replace(",", " ").split()


def _number(text: str, least: int, most: int, what: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII) or not least <= int(text) <= most:
        raise ValueError(f"{text!r} is not {what}: write {least} to {most}")
    return int(text)


def _parse_port_range(text: str) -> PortRange:
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    ports = PortRange(int(match[1]), int(match[2] or match[1])) if match else PortRange(0, 0)
    if not 1 <= ports.first <= ports.last <= 65535:
        raise ValueError(f"{text!r} is not a port or a range of ports: write 22 or 2379-2380, from 1 to 65535")
    return ports


def _parse_server(text: str) -> str:
    """Read one URL, without a trailing slash."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{text!r} is not a URL: allowed is http://HOST[:PORT] or https://HOST[:PORT]")
    return text.rstrip("/")


def parse_address(text: str) -> str:
    """Read an address. Returns its canonical text."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address: write it like 192.168.123.250 or fd00::1") from None


FLAG_NAMES = {
    "node_ips": "node-ip",
    "service_cidrs": "service-cidr",
    "external_ip_ranges": "external-ip-range",
    "load_balancer_ip_ranges": "loadbalancer-ip-range",
    "load_balancer_classes": "loadbalancer-class",
    "node_address_ranges": "node-address-range",
    "cluster_cidrs": "cluster-cidr",
    "masquerade_exemptions": "masquerade-exempt",
}
"""The flags whose fields of `Settings` have other names."""
_SECONDS = frozenset(
    {
        *("resync_period", "drain_timeout", "take_over_after", "withdraw_grace"),
        *("bgp_holdtime", "bgp_graceful_restart_time", "bfd_interval"),
    }
)


def as_flags(settings: Settings) -> dict[str, str]:
    """Every flag of `kroute run` with its value, as it may be written on the command line."""
    fields = msgspec.structs.asdict(settings)
    return {FLAG_NAMES.get(name, name.replace("_", "-")): _written(name, value) for name, value in fields.items()}


def differing(settings: Settings, defaults: Settings = DEFAULTS) -> dict[str, str]:
    """The flags of `kroute run` whose values are not the defaults, as `as_flags` writes them, without a password."""
    usual = as_flags(defaults)
    return {name: value for name, value in as_flags(without_password(settings)).items() if value != usual[name]}


def without_password(settings: Settings) -> Settings:
    """The settings without a name and password in the API servers' addresses."""
    return msgspec.structs.replace(settings, master=tuple(map(without_user, settings.master)))


def without_user(url: str) -> str:
    """The URL without a name and password."""
    return _USER.sub("", url)


def _written(field: str, value: object) -> str:
    match value:
        case None | ListenAddress() if field.endswith("_bind_address"):
            text = write_bind_address(value)
        case None | bool() if field in {"hairpin", "strict_arp", "ipvs_estimation"}:
            text = "leave" if value is None else "on" if value else "off"
        case bool():
            text = str(value).lower()
        case int() | float() if field in _SECONDS or "timeout" in field:
            text = write_duration(value)
        case float() if field == "resync_budget":
            text = f"{value * 100:g}%"
        case int() if field.endswith("_mark"):
            text = f"{value:#x}"
        case tuple():
            text = ",".join(map(str, value))
        case _:
            text = "" if value is None else str(value)
    return text
