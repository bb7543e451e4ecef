"""How many messages go into one send(): as many as the kernel works through while the event loop may stand still."""

from collections.abc import Sequence

CHUNK_MESSAGES = 128
"""At most; the kernel needs 20 us and more for a message."""
LEAST_MESSAGES = 16
"""Where all stands still because the machine is busy, tiny chunks would only add to it."""
CHUNK_SECONDS = 0.008
"""How long one chunk should take: where messages take longer, the next one is smaller."""
CHUNK_BYTES = 48 * 1024
"""Far below what a send buffer holds (net.core.wmem_default is 208 KiB)."""


def end_of_chunk(messages: Sequence[bytes], start: int, most: int) -> int:
    """Where a chunk ends that begins at `start`: `most` messages, or as many as fit into one send(); one at least."""
    size = 0
    end = min(start + most, len(messages))
    for index in range(start, end):
        size += len(messages[index])
        if size > CHUNK_BYTES and index > start:
            return index
    return end


def next_chunk(size: int, messages: int, seconds: float) -> int:
    """How many messages the next chunk may hold, when this one might have held `size`, and `messages` took so long."""
    fitting = int(messages * CHUNK_SECONDS / seconds) if seconds > 0 else CHUNK_MESSAGES
    return max(LEAST_MESSAGES, min(CHUNK_MESSAGES, 2 * size, fitting))
