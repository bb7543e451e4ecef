"""How many messages go into one send(). The event loop stops while the kernel handles them, so chunks are short."""

from collections.abc import Sequence

CHUNK_MESSAGES = 128
"""The most messages of a chunk. The kernel needs 20 us or more for a message."""
LEAST_MESSAGES = 16
"""The fewest messages of a chunk. When everything is slow because the machine is busy, tiny chunks would add load."""
CHUNK_SECONDS = 0.008
"""How long one chunk should take. After a chunk that took longer, the next one is smaller."""
CHUNK_BYTES = 48 * 1024
"""The most bytes of a chunk, far below a send buffer's size (net.core.wmem_default is 208 KiB)."""


def end_of_chunk(messages: Sequence[bytes], start: int, most: int) -> int:
    """The end of the chunk that begins at `start`: `most` messages and CHUNK_BYTES at most, one message at least."""
    size = 0
    end = min(start + most, len(messages))
    if sum(map(len, messages[start:end])) <= CHUNK_BYTES:
        return end
    for index in range(start, end):
        size += len(messages[index])
        if size > CHUNK_BYTES and index > start:
            return index
    return end


def next_chunk(size: int, messages: int, seconds: float) -> int:
    """The limit of the next chunk, after one with the limit `size` whose `messages` messages took `seconds`."""
    fitting = int(messages * CHUNK_SECONDS / seconds) if seconds > 0 else CHUNK_MESSAGES
    return max(LEAST_MESSAGES, min(CHUNK_MESSAGES, 2 * size, fitting))
