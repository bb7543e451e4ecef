"""What a TLS connection to the API server needs."""

import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any

READ_AT_ONCE = 64 << 10
"""Bytes that asyncio takes from a connection with TLS at once.

Each connection keeps a buffer of this size, and for each record, of at most 16 KiB, a new one is made. With asyncio's
256 KiB, the connections of four watches hold 1 MiB, and the large buffers make reading a list take 1.6 times as long.
"""


def context_for(configuration: Any) -> ssl.SSLContext:
    """The context for a `Configuration` of kubernetes-asyncio.

    The system's authorities, which take long to load, count only where no other is named.

    Raises OSError: a file cannot be used.
    """
    SSLProtocol.max_size = READ_AT_ONCE  # for all connections of the process: asyncio has no other way
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif configuration.ssl_ca_cert:
        context.load_verify_locations(cafile=configuration.ssl_ca_cert)
    else:
        context.load_default_certs()
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if getattr(configuration, "disable_strict_ssl_verification", False):
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
