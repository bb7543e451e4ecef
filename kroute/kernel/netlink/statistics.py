"""What a netlink socket counts."""

from dataclasses import dataclass


@dataclass
class NetlinkStatistics:
    """What one socket has done so far.

    `transactions` are the chunks that `transact` has sent, and the rest is about these: how many seconds they took,
    when by the monotonic clock the first one began, and when the last one was over.
    """

    messages: int = 0
    bytes: int = 0
    sends: int = 0
    transactions: int = 0
    seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0
