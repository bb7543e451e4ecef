"""The API stand-in's certificate: agents speak TLS with it, as with a real API server."""

import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """A certificate that is its own authority. `file` is for clients, `context` for the server."""

    file: Path
    context: ssl.SSLContext


def make(directory: Path, address: str) -> Certificate:
    """Make a certificate for this address, with a key of RSA 2048 as kubeadm's, and put its file into the directory."""
    file, key = directory / "authority.pem", directory / "key.pem"
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bench")
    names = f"subjectAltName=IP:{address}"
    command = ["openssl", "req", *made, "-addext", names, "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, key)
    return Certificate(file, context)
