"""`kroute bundle`: everything that support needs, in one file.

Its parts are collected each within its own time and size. A part that fails, or takes too long, costs only itself: the
index names it with the reason.
"""

import asyncio
import io
import os
import re
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import click
import msgspec

from kroute import __version__
from kroute.base.printable import printable
from kroute.base.wording import with_path
from kroute.cli.bundle.parts import Collected, Part, agent_parts, kernel_parts
from kroute.cli.bundle.redaction import LONGEST_SECRET, Redaction, secrets_of
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.terminal.output import DONE, FAILURE, refusing
from kroute.model.document import Document, View, encode
from kroute.settings import Settings

PART_SECONDS = 15.0
ALL_SECONDS = 60.0
PART_BYTES = 8 << 20
ALL_BYTES = 48 << 20
"""The most of one part and of all parts, in seconds and in bytes before compression."""
INDEX = "index.json"


class IndexEntry(View):
    """What became of a part: `reason` says why it is not there, `omitted` how many bytes at its end are not."""

    name: str
    about: str
    bytes: int = 0
    seconds: float = 0.0
    omitted: int = 0
    reason: str = ""


class Index(Document, kw_only=True):
    """The file `index.json`. `removed` is how many secrets were removed from all parts; `created` is a Unix time."""

    kind: ClassVar[str] = "BundleIndex"

    version: str = __version__
    node: str
    created: float
    removed: int = 0
    parts: list[IndexEntry]

    def names(self) -> list[str]:
        """The parts that were collected."""
        return [part.name for part in self.parts if not part.reason]


async def collect(node: str, parts: Sequence[Part], redaction: Redaction) -> tuple[Index, dict[str, bytes]]:
    """The index, and the contents of each part that could be collected, by name."""
    index = Index(node=node, created=time.time(), parts=[])
    contents: dict[str, bytes] = {}
    end, left = time.monotonic() + ALL_SECONDS, ALL_BYTES
    for part in parts:
        entry = IndexEntry(part.name, part.about)
        index.parts.append(entry)
        began = time.monotonic()
        if end <= began or left <= 0:
            entry.reason = f"left out: the bundle has taken {ALL_SECONDS:g} s or {ALL_BYTES} bytes already"
            continue
        until = began + min(PART_SECONDS, end - began)
        try:
            async with asyncio.timeout(until - began):
                raw = _bytes_of(await part.collect())
            read = raw[: PART_BYTES + LONGEST_SECRET]
            kept = redaction.clean(read.decode(errors="replace"), until).encode()
            if len(read) < len(raw):
                kept = kept[:-LONGEST_SECRET]  # the first half of a secret may be there
        except TimeoutError:
            entry.reason = f"not collected within {PART_SECONDS:g} s"
        except Exception as error:  # noqa: BLE001  whatever is wrong with the node, the other parts are wanted
            entry.reason = redaction.clean(with_path(error))
        else:
            contents[part.name] = kept[: min(PART_BYTES, left)]
            entry.bytes = len(kept) + len(raw) - len(read)
            entry.omitted = entry.bytes - len(contents[part.name])
            left -= len(contents[part.name])
        entry.seconds = round(time.monotonic() - began, 3)
    index.removed = redaction.count
    return index, contents


def pack(name: str, index: Index, contents: Mapping[str, bytes]) -> bytes:
    """The archive: a gzipped tar file with one directory, `name`. Its files are for their owner only."""
    packed = io.BytesIO()
    documents = {INDEX: msgspec.json.format(encode(index)), **contents}
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path, content in documents.items():
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size, member.mode, member.mtime = len(content), 0o600, int(index.created)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _bytes_of(collected: Collected) -> bytes:
    if isinstance(collected, bytes):
        return collected
    if isinstance(collected, str):
        return collected.encode(errors="replace")
    return msgspec.json.format(msgspec.json.encode(collected, enc_hook=str))


STDOUT = "-"


@click.command(cls=FlagsCommand)
@click.option(
    "-f",
    "--file",
    "path",
    default=None,
    metavar="PATH",
    help="The file to write; - is standard output.  [default: kroute-bundle-NODE-TIME.tar.gz]",
)
@settings_in_force
def bundle(settings: Settings, *, path: str | None) -> int:
    """Collect everything that support needs in one file, without secrets, and change nothing.

    What cannot be collected is named in the bundle's index, with the reason. Exits with 0 if something was collected.
    """
    name = bundle_name(settings.node_name)
    path = path or f"{name}.tar.gz"
    if path == STDOUT and sys.stdout.isatty():
        raise click.UsageError("standard output is a terminal: give --file PATH, or send the output to a file")
    parts, redaction = [*agent_parts(settings), *kernel_parts(settings)], Redaction(secrets_of(settings))
    index, contents = asyncio.run(collect(settings.node_name, parts, redaction))
    packed = pack(name, index, contents)
    with refusing(OSError):
        write(path, packed)
    print_index(index, path, len(packed))
    return DONE if contents else FAILURE


def write(path: str, packed: bytes) -> None:
    """Write the archive for its owner only. Raises OSError, also if the file exists."""
    if path == STDOUT:
        sys.stdout.buffer.write(packed)
        sys.stdout.buffer.flush()
        return
    with os.fdopen(os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(packed)


def print_index(index: Index, path: str, size: int) -> None:
    """Say on standard error what the bundle has, and what it lacks."""
    for part in index.parts:
        if part.reason:
            click.echo(f"not collected: {part.name}: {printable(part.reason)}", err=True)
    where, count = "standard output" if path == STDOUT else path, len(index.names())
    click.echo(
        f"{where}: {count} of {len(index.parts)} parts, {size / 1024:.0f} KiB; {index.removed} values that look like "
        "secrets were removed. It names Services, pods and addresses: look at it before you pass it on.",
        err=True,
    )


def bundle_name(node: str) -> str:
    """The name of a bundle that is made now, without the suffix of a file."""
    name = re.sub(r"[^A-Za-z0-9.-]", "_", node)[:63]
    return f"kroute-bundle-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
