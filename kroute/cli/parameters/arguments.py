"""Addresses, ports and Services on the command line, and what a shell may complete in their place.

Every `parse_…` function raises ValueError with a sentence.
"""

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

import click

from kroute.inspect import agent_socket
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.model.policy_plan import LAST_PORT
from kroute.settings import DEFAULTS
from kroute.settings.text import parse_address

TARGET = "ADDRESS[:PORT] | SERVICE[:PORT] | POD:PORT"
"""What `kroute explain` takes (`parse_target`)."""
SHOWN = "[services | service NAMESPACE/NAME | policies | peers | routes | pod-routes]"
"""What `kroute show` takes."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


_HOW = (
    "write ADDRESS:PORT, [IPV6]:PORT, NAMESPACE/NAME or NAME.NAMESPACE:PORT, and add /UDP if it is UDP; "
    "without a port: all of them"
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_POD = re.compile(r"pod/(?P<namespace>[^/:]+)/(?P<name>[^/:]+)(:(?P<port>\d{1,5})(/(?P<protocol>\w+))?)?")
_CLIENT_POD = re.compile(r"(pod/)?(?P<namespace>[^/:]+)/(?P<name>[^/:]+)")
_DNS_NAME = re.compile(r"(?P<name>[^.]+)\.(?P<namespace>[^.]*[a-z][^.]*)(\.svc(\..+)?)?")


class ServicePorts(NamedTuple):
    """Some ports of a Service. `port` is a name or number, empty for all; without `protocol` it is any.

    `by_name`: as clients address it by its DNS name, which is that of its ClusterIPs.
    """

    service: ObjectKey
    port: str = ""
    protocol: Protocol | None = None
    by_name: bool = False


class AddressPorts(NamedTuple):
    """All ports of an address, of one protocol or of any."""

    address: str
    protocol: Protocol | None = None


class PodPort(NamedTuple):
    """A port of a pod, at each of its addresses."""

    pod: ObjectKey
    port: int
    protocol: Protocol


Target = VirtualServerKey | AddressPorts | ServicePorts | PodPort


def parse_target(text: str) -> Target:
    """Read an address and port as `parse_frontend` does, an address alone, a Service, or `pod/NAMESPACE/NAME:PORT`.

    An address may be followed by `/PROTOCOL`; IPv6 addresses may be in brackets. A Service is `NAMESPACE/NAME` or its
    DNS name `NAME.NAMESPACE[.svc[.DOMAIN]]`, each optionally followed by `:PORT` and `/PROTOCOL`. PORT is a name or a
    number.
    """
    if pod := _POD.fullmatch(text):
        if not 1 <= int(pod["port"] or 0) <= LAST_PORT:
            raise ValueError(f"{text!r} is not a pod and port: write pod/NAMESPACE/NAME:PORT")
        key = ObjectKey(pod["namespace"], pod["name"])
        return PodPort(key, int(pod["port"]), _protocol(pod["protocol"] or "") or Protocol.TCP)
    before, slash, behind = text.partition("/")
    if (address := _address(before)) is not None:
        return AddressPorts(address, _protocol(behind))
    if slash and ":" not in before:
        name, _, port = behind.partition(":")
        port, _, protocol = port.partition("/")
        return ServicePorts(parse_service(f"{before}/{name}"), port, _protocol(protocol))
    host, _, port = before.partition(":")
    match = _DNS_NAME.fullmatch(host)
    if match is None or not _NAME.fullmatch(match["name"]) or not _NAME.fullmatch(match["namespace"]):
        return parse_frontend(text)
    return ServicePorts(ObjectKey(match["namespace"], match["name"]), port, _protocol(behind), by_name=True)


def _address(text: str) -> str | None:
    """The canonical text of an address, of which an IPv6 one may be in brackets; None for another text."""
    is_bracketed = text.startswith("[") and text.endswith("]")
    try:
        found = ip_address(text[1:-1] if is_bracketed else text)
    except ValueError:
        return None
    return None if is_bracketed and found.version == 4 else str(found)


def parse_frontend(text: str) -> VirtualServerKey:
    """Read `ADDRESS:PORT` or `[ADDRESS]:PORT`, each optionally followed by `/TCP`, `/UDP` or `/SCTP` in any case."""
    endpoint, _, protocol = text.partition("/")
    address, colon, port = endpoint.rpartition(":")
    is_bracketed = address.startswith("[") and address.endswith("]")
    if not colon or not port.isdecimal() or not 1 <= int(port) <= LAST_PORT or (":" in address) != is_bracketed:
        raise ValueError(f"{text!r} is not an address and port: {_HOW}")
    return VirtualServerKey(_protocol(protocol) or Protocol.TCP, parse_address(address.strip("[]")), int(port))


def _protocol(text: str) -> Protocol | None:
    """A protocol by its name in any case; None for an empty text."""
    if text and text.upper() not in Protocol.__members__:
        raise ValueError(f"{text!r} is not a protocol of Services: write {', '.join(Protocol.__members__)}")
    return Protocol[text.upper()] if text else None


def parse_client(text: str) -> str | ObjectKey:
    """Read an address, or a pod: `NAMESPACE/NAME`, which `pod/` may precede."""
    if pod := _CLIENT_POD.fullmatch(text):
        return ObjectKey(pod["namespace"], pod["name"])
    return parse_address(text)


def parse_service(text: str) -> ObjectKey:
    """Read `NAMESPACE/NAME`."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name or " " in text:
        raise ValueError(f"{text!r} is not a Service: write NAMESPACE/NAME")
    return ObjectKey(namespace, name)


def complete_service(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The Services of this node's agent that begin so; none if no agent answers at once."""
    state_dir = context.params.get("state_dir") or DEFAULTS.state_dir
    return [name for name in agent_socket.ask_names(state_dir) if name.startswith(incomplete)]


def complete_shown(
    context: click.Context, parameter: click.Parameter, incomplete: str, services: Complete = complete_service
) -> list[str]:
    """The words of `kroute show`. `services` completes names of Services."""
    words = tuple(context.params.get("what") or ())
    if words == ("service",):
        return services(context, parameter, incomplete)
    known = ("services", "service", "policies", "peers", "routes", "pod-routes")
    return [word for word in known if word.startswith(incomplete) and not words]
