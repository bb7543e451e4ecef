"""The counters of a netlink socket."""

import msgspec


class NetlinkStatistics(msgspec.Struct):
    """What one socket has sent so far.

    `transactions` counts the chunks that `transact` has sent, and `seconds` how long they took. `first` is when the
    first one began, and `last` when the last one ended, on the monotonic clock.
    """

    messages: int = 0
    bytes: int = 0
    sends: int = 0
    transactions: int = 0
    seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0
