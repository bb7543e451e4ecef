"""Read values as the Go programs kube-proxy and kube-router read them, and write them as kroute's settings.

Every function raises ValueError with a sentence for a text that has no meaning.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address, ip_interface

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})


def duration(value: object) -> str:
    """A duration (`1m30s`, `500ms`, `0`) in seconds (`time.ParseDuration`)."""
    text = str(value)
    parts = _DURATION_PART.findall(text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError(f"{value!r} is not a duration: write 30s, 5m or 1h30m")
    return f"{sum(float(number) * _SECONDS[unit] for number, unit in parts):.3f}".rstrip("0").rstrip(".") + "s"


def is_true(text: str) -> bool:
    """A switch of the command line (`strconv.ParseBool`)."""
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return text in _TRUE


def networks(value: str | Iterable[object]) -> str:
    """Networks, separated by commas, without the bits beyond their prefixes (`net.ParseCIDR`). Other words stay."""
    texts = value.split(",") if isinstance(value, str) else map(str, value)
    return ",".join(_network(text.strip()) for text in texts)


def _network(text: str) -> str:
    try:
        return str(ip_interface(text).network) if "/" in text else text
    except ValueError:
        return text  # the setting's own check says what is wrong


def host_name(value: object) -> str:
    """A node's name in lower case, without spaces around it (`GetHostname` of component-helpers/node/util)."""
    name = str(value).strip().lower()
    if not name:
        raise ValueError(f"{value!r} is not a host name: it is empty")
    return name


def bind_address(value: object, port: int) -> str:
    """An address to listen on, with `port` if it has none (`AppendPortIfNeeded` of pkg/proxy/util)."""
    text = str(value)
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        return text  # it has a port, or the setting's own check says what is wrong
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def mark_bit(value: object) -> str:
    """The packet mark of one bit, by its number."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or not 0 <= number < 32:
        raise ValueError(f"{value!r} is not a bit of a packet mark: write 0 to 31")
    return f"{1 << number:#x}"


def is_unspecified(text: str) -> bool:
    """Whether this is the address that stands for all addresses of its family."""
    try:
        return ip_address(text).is_unspecified
    except ValueError:
        return False  # the setting's own check reports an invalid address
