"""What every kind of credentials shares: where the server is, the header with the token, and checks of both."""

import os
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kroute.watchers.kubernetes.errors import ConfigurationError

REFRESH_PERIOD = 60.0
"""Seconds for which a token is used before its source is read again. client-go keeps a token file as long."""
LONGEST_TOKEN = 64 << 10
"""Characters. Servers accept headers of some 8 to 64 KiB."""
Pem = Path | str
"""Certificates or a key: a file with them, or the text itself."""
READ_AT_ONCE = 64 << 10
"""Bytes that asyncio takes from a connection with TLS at once.

Each connection keeps a buffer of this size, and for each record, of at most 16 KiB, a new one is made. With asyncio's
256 KiB, the connections of four watches hold 1 MiB, and the large buffers make reading a list take 1.6 times as long.
"""


class Configuration(msgspec.Struct):
    """The way to a server, and the headers that authenticate.

    `tls_server_name` is the name in its certificate, if it is not that of `host`, a URL.
    """

    host: str
    headers: dict[str, str] = {}
    authority: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    verify_tls: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None

    @property
    def pems(self) -> tuple[Pem | None, Pem | None, Pem | None]:
        """The certificates and the key."""
        return self.authority, self.certificate, self.key


class Credentials:
    """A `Configuration` that is kept up to date. By itself, it is a server's URL without any credentials."""

    def __init__(self, url: str) -> None:
        self.configuration = Configuration(url)

    async def refresh(self, *, rejected: bool = False) -> None:
        """Bring `configuration` up to date. `rejected`: whether the server refused the current credentials.

        Raises:
            ConfigurationError: the source of the credentials cannot be used (any more).
        """


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


def context_for(configuration: Configuration) -> ssl.SSLContext:
    """The context for connections by this configuration.

    The system's authorities, which take long to load, count only where no other is named.

    Raises OSError: a certificate or key cannot be used.
    """
    SSLProtocol.max_size = READ_AT_ONCE  # for all connections of the process: asyncio has no other way
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not configuration.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif configuration.authority is not None:
        with _file_of(configuration.authority) as authority:
            context.load_verify_locations(cafile=authority)
    else:
        context.load_default_certs()
    if configuration.certificate is not None:
        key_or_both = configuration.key or configuration.certificate
        with _file_of(configuration.certificate) as certificate, _file_of(key_or_both) as key:
            context.load_cert_chain(certificate, key)
    return context


@contextmanager
def _file_of(pem: Pem) -> Iterator[Path]:
    """A file as `ssl` needs one. A text is in memory alone, and no other user can open it (memfd_create(2))."""
    if not isinstance(pem, str):
        yield pem
        return
    descriptor = os.memfd_create("kroute")
    try:
        os.write(descriptor, pem.encode())
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
