"""The node's DNS servers, as its resolver's files name them (resolv.conf(5))."""

from collections.abc import Iterable
from pathlib import Path

from kroute.base.backoff import exhaustion
from kroute.model.addresses import canonical

FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The second has the servers behind systemd-resolved, of which the first names only its own loopback address."""

LONGEST_FILE = 64 << 10
"""Bytes that are read of a file."""


def dns_servers(files: Iterable[Path] = FILES) -> frozenset[str]:
    """The addresses in these files; a file that cannot be read names none.

    Raises OSError when a file could not be read for lack of a resource: nothing is known then.
    """
    return frozenset(address for file in files for address in _named(file))


def _named(file: Path) -> list[str]:
    try:
        with file.open("rb") as opened:
            text = opened.read(LONGEST_FILE).decode(errors="replace")
    except OSError as error:
        if exhaustion(error) is not None:
            raise
        return []
    words = [line.split() for line in text.splitlines() if line.startswith("nameserver")]
    return [address for line in words if len(line) > 1 and (address := canonical(line[1])) is not None]
