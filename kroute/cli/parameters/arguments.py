"""Parse addresses, ports and Services on the command line. Every function raises ValueError with a sentence."""

from ipaddress import ip_address

from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol, VirtualServerKey


def parse_address(text: str) -> str:
    """Read an address. Returns its canonical text."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an address: write 192.168.1.5 or fd00::5") from None


def parse_frontend(text: str) -> VirtualServerKey:
    """Read `ADDRESS:PORT` or `[ADDRESS]:PORT`, each optionally followed by `/tcp`, `/udp` or `/sctp`."""
    hint = "write ADDRESS:PORT, [IPV6]:PORT, or ADDRESS:PORT/udp"
    endpoint, _, protocol = text.partition("/")
    address, colon, port = endpoint.rpartition(":")
    is_bracketed = address.startswith("[") and address.endswith("]")
    if not colon or not port.isdecimal() or not 1 <= int(port) <= 65535 or (":" in address) != is_bracketed:
        raise ValueError(f"{text!r} is not an address and port: {hint}")
    known = {it.name.lower(): it for it in Protocol}
    if (protocol or "tcp").lower() not in known:
        raise ValueError(f"{protocol!r} is not a protocol of Services: write {', '.join(known)}")
    return VirtualServerKey(known[(protocol or "tcp").lower()], parse_address(address.strip("[]")), int(port))


def parse_service(text: str) -> ObjectKey:
    """Read `NAMESPACE/NAME`."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name or " " in text:
        raise ValueError(f"{text!r} is not a Service: write NAMESPACE/NAME")
    return ObjectKey(namespace, name)
