"""Collect the parts of a bundle, each within its own time and size, and write the archive with its index.

A part that fails, or takes too long, costs only itself: the index names it with the reason.
"""

import asyncio
import io
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from kroute import __version__
from kroute.cli.bundle.redaction import LONGEST_SECRET, Redaction
from kroute.model.document import Document, View, encode
from kroute.settings.wording import with_path

PART_SECONDS = 15.0
ALL_SECONDS = 60.0
PART_BYTES = 8 << 20
ALL_BYTES = 48 << 20
"""The most of one part and of all parts, in seconds and in bytes before compression."""
INDEX = "index.json"

Collected: TypeAlias = bytes | str | msgspec.Struct | Sequence[object] | Mapping[str, object]
Collect: TypeAlias = Callable[[], Awaitable[Collected]]


class Part(NamedTuple):
    """One file of the bundle. `about` says what it is for. What is no text becomes JSON."""

    name: str
    about: str
    collect: Collect


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
        return [it.name for it in self.parts if not it.reason]


async def collect(
    node: str,
    parts: Sequence[Part],
    redaction: Redaction,
    *,
    part_seconds: float = PART_SECONDS,
    all_seconds: float = ALL_SECONDS,
    part_bytes: int = PART_BYTES,
    all_bytes: int = ALL_BYTES,
) -> tuple[Index, dict[str, bytes]]:
    """The index, and the contents of each part that could be collected, by name."""
    index = Index(node=node, created=time.time(), parts=[])
    contents: dict[str, bytes] = {}
    end, left = time.monotonic() + all_seconds, all_bytes
    for part in parts:
        entry = IndexEntry(part.name, part.about)
        index.parts.append(entry)
        began = time.monotonic()
        if end <= began or left <= 0:
            entry.reason = f"left out: the bundle has taken {all_seconds:g} s or {all_bytes} bytes already"
            continue
        until = began + min(part_seconds, end - began)
        try:
            async with asyncio.timeout(until - began):
                raw = _bytes_of(await part.collect())
            read = raw[: part_bytes + LONGEST_SECRET]
            kept = redaction.clean(read.decode(errors="replace"), until).encode()
            if len(read) < len(raw):
                kept = kept[:-LONGEST_SECRET]  # the first half of a secret may be there
        except TimeoutError:
            entry.reason = f"not collected within {part_seconds:g} s"
        except Exception as error:  # noqa: BLE001  whatever is wrong with the node, the other parts are wanted
            entry.reason = redaction.clean(with_path(error))
        else:
            contents[part.name] = kept[: min(part_bytes, left)]
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
    match collected:
        case bytes():
            return collected
        case str():
            return collected.encode(errors="replace")
    return msgspec.json.format(msgspec.json.encode(collected, enc_hook=str))
