"""What every kind of credentials shares: where the server is, the header with the token, and checks of both."""

from pathlib import Path
from typing import Protocol

import msgspec

from kroute.watchers.kubernetes.errors import ConfigurationError

REFRESH_PERIOD = 60.0
"""Seconds for which a token is used before its source is read again. client-go keeps a token file as long."""

LONGEST_TOKEN = 64 << 10
"""Characters. Servers accept headers of some 8 to 64 KiB."""


class Configuration(msgspec.Struct):
    """The part of kubernetes-asyncio's `Configuration` that its reader of kubeconfigs sets, by the same names.

    kroute uses it in place of that one, which would load http.client and email. `api_key` has the value of the header
    Authorization by the name BearerToken, if a kubeconfig has a token.
    """

    host: str
    ssl_ca_cert: str | None = None
    verify_ssl: bool = True
    cert_file: str | None = None
    key_file: str | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    proxy_headers: dict[str, str] | None = None
    api_key: dict[str, str] = msgspec.field(default_factory=dict)


class Credentials(Protocol):
    """A `Configuration` that is kept up to date."""

    configuration: Configuration

    async def refresh(self, *, rejected: bool = False) -> None:
        """Bring `configuration` up to date. `rejected`: whether the server refused the current credentials.

        Raises:
            ConfigurationError: the source of the credentials cannot be used (any more).
        """

    async def headers(self) -> dict[str, str]:
        """The request headers that authenticate. Raises as `refresh` does."""


def authorization(value: str) -> dict[str, str]:
    """The header with a token, of which `value` is the method and the token. Raises ConfigurationError if HTTP cannot.

    A token file often ends with a line feed, which is not part of the token. client-go strips white space, too.
    """
    method, _, token = value.partition(" ")
    header = f"{method} {token.strip()}"
    if not token.strip():
        raise ConfigurationError("the token is empty: its file has to hold one")
    if len(header) > LONGEST_TOKEN or not header.isascii() or not header.isprintable():
        raise ConfigurationError(
            f"the token cannot be sent: allowed are up to {LONGEST_TOKEN:,} printable ASCII characters in one line"
        )
    return {"authorization": header}


def fingerprint(path: Path | str | None) -> tuple[int, ...]:
    """A value that changes when a file changes or is replaced; empty if there is no file."""
    if path is None:
        return ()
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def sentence(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
