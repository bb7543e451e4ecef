"""The proxy that leads to a server: the one that is configured, or else that of the usual variables."""

import base64
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import unquote, urlsplit

import msgspec


class Proxy(msgspec.Struct, frozen=True):
    """Where a proxy listens, whether by TLS, and the headers that it gets."""

    host: str
    port: int
    is_tls: bool
    headers: tuple[tuple[str, str], ...]


def proxy_to(url: str, configured: str | None) -> Proxy | None:
    """The proxy for requests to `url`, or None. The variables are HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

    What the variables mean is as in Go, and so in kube-proxy and kubectl (golang.org/x/net/http/httpproxy).

    Raises:
        ValueError: its own URL cannot be used.
    """
    found = configured or _of_environment(url)
    if not found:
        return None
    parts = urlsplit(found if "://" in found else f"http://{found}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"the proxy {parts.scheme}://{parts.hostname or ''} must begin with http:// or https://")
    is_tls = parts.scheme == "https"
    headers = (("Proxy-Authorization", basic(parts.username, parts.password)),) if parts.username else ()
    return Proxy(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, headers)


def basic(username: str | None, password: str | None) -> str:
    """The value of a header that authenticates by a name and a password, both as a URL has them (RFC 7617)."""
    secret = f"{unquote(username or '')}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(secret.encode()).decode()}"


def _of_environment(url: str) -> str | None:
    if not any(name.lower().endswith("_proxy") and value for name, value in os.environ.items()):
        return None
    import urllib.request as library  # noqa: PLC0415  1 MiB for a few lines

    parts, proxies = urlsplit(url), library.getproxies_environment()
    if library.proxy_bypass_environment(parts.netloc.rpartition("@")[2], proxies):  # type: ignore[attr-defined]
        return None
    return None if _is_left_out(parts.hostname or "", proxies.get("no", "")) else proxies.get(parts.scheme)


def _is_left_out(host: str, left_out: str) -> bool:
    """Whether Go asks the host without a proxy by a rule that urllib lacks: loopback, networks, `*.` before a name."""
    entries = [entry.strip().lower() for entry in left_out.split(",")]
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or any(it.startswith("*.") and host.endswith(it[1:]) for it in entries)
    return address.is_loopback or any(address in network for network in _networks(entries))


def _networks(entries: Iterable[str]) -> Iterator[IPv4Network | IPv6Network]:
    for entry in entries:
        with suppress(ValueError):
            yield ip_network(entry, strict=False)
