"""What a TLS connection to the API server needs."""

import os
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kroute.watchers.kubernetes.authentication.configuration import Configuration, Pem

READ_AT_ONCE = 64 << 10
"""Bytes that asyncio takes from a connection with TLS at once.

Each connection keeps a buffer of this size, and for each record, of at most 16 KiB, a new one is made. With asyncio's
256 KiB, the connections of four watches hold 1 MiB, and the large buffers make reading a list take 1.6 times as long.
"""


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
