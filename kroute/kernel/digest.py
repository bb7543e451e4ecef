"""What a look at a part of the kernel's state gives: enough to see a change, much less than the state."""

import msgspec


class Digest(msgspec.Struct, frozen=True):
    """Of two digests by one client, equal checksums mean that the state was the same, traffic counters aside.

    `counts` are numbers of objects, as the client's method says. They are known even after a write of one's own.
    """

    checksum: int
    counts: tuple[int, ...] = ()


class LastLook:
    """The digest by which the next look at one part of the kernel is judged.

    After a write of one's own the checksum is another one. Then the counts decide once, which do not show that one
    object was exchanged for another.
    """

    def __init__(self) -> None:
        self._checksum: int | None = None

    def read(self, before: Digest | None) -> None:
        """The state has been read as a whole; `before` is its digest from before that."""
        self._checksum = before.checksum if before is not None else None

    def wrote(self) -> None:
        """The state has changed by a write of one's own, or in a way that one knows of."""
        self._checksum = None

    def is_same(self, digest: Digest | None, counts: tuple[int, ...]) -> bool:
        """Whether all is as it was. `counts` are those that the state should have now."""
        if digest is None:
            return False
        if self._checksum is not None:
            return digest.checksum == self._checksum
        if digest.counts != counts:
            return False
        self._checksum = digest.checksum
        return True
