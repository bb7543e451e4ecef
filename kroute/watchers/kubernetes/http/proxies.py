"""The proxy that leads to a server: the one that is configured, or else that of the usual variables."""

import base64
import os
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

    Raises:
        ValueError: its own URL cannot be used.
    """
    found = configured or _of_environment(url)
    if not found:
        return None
    parts = urlsplit(found if "://" in found else f"http://{found}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"the proxy {parts.scheme}://{parts.hostname or ''} is none of http:// or https://")
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

    parts = urlsplit(url)
    if library.proxy_bypass_environment(parts.netloc.rpartition("@")[2]):  # type: ignore[attr-defined]
        return None
    return library.getproxies_environment().get(parts.scheme)
