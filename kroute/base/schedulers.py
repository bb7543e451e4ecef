"""The schedulers of the kernel's IPVS, and the flags that two of them take.

Which bit is which flag: `IP_VS_SVC_F_SCHED1..3` of `include/uapi/linux/ip_vs.h`; `ip_vs_sh.c`, `ip_vs_mh.c`.
"""

from collections.abc import Iterable, Iterator

import msgspec

SCHEDULERS = ("rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos")
"""The schedulers (`net/netfilter/ipvs/ip_vs_*.c`), by the names that ipvsadm uses."""

BY_SHARE = ("wrr", "wlc", "sed", "nq", "mh", "sh", "twos")
"""Those that divide connections by weight."""

SHARING = "wrr"
"""The one of them that serves where weights count and nothing has chosen a scheduler: `rr` with weights."""

IGNORE_WEIGHTS = frozenset({"rr", "lc", "dh"})
"""Those to which every weight above 0 is the same. To the others weights mean something else: `fo` and `ovf` take the
server with the greatest weight, `ovf` till it has as many connections; `lblc` and `lblcr` take a server as overloaded
when it has more connections than its weight."""

SCHEDULERS_WITH_FLAGS = frozenset({"mh", "sh"})
"""All other schedulers ignore flags, and the kernel does not show flags for them."""

IN_STEPS = tuple(scheduler for scheduler in BY_SHARE if scheduler != "sh")
"""Those that divide connections by weights of any size, so that a slow start can climb in steps. `sh` has 256 places:
one real server after the other gets as many as its weight, and for the last none are left (`ip_vs_sh_reassign`)."""

SCHEDULERS_BY_ORDER = frozenset({"mh", "sh"})
"""Those that choose by the client's address from a table that the kernel fills in the order of the real servers. Nodes
choose alike only if that order is the same on all of them."""

HASHING = SCHEDULERS_BY_ORDER | {"dh"}
"""Those in whose table a real server with weight 0 keeps its places. Who meets one is refused, or sent elsewhere than
after the real server's deletion."""


class SchedulerFlag(msgspec.Struct, frozen=True):
    """A flag of a scheduler: its kernel bit, and the only scheduler that it has a meaning for (None: any)."""

    bit: int
    scheduler: str | None


SCHEDULER_FLAGS = {
    "none": SchedulerFlag(0, None),
    "flag-1": SchedulerFlag(0x08, None),
    "flag-2": SchedulerFlag(0x10, None),
    "flag-3": SchedulerFlag(0x20, None),
    "sh-fallback": SchedulerFlag(0x08, "sh"),
    "sh-port": SchedulerFlag(0x10, "sh"),
    "mh-fallback": SchedulerFlag(0x08, "mh"),
    "mh-port": SchedulerFlag(0x10, "mh"),
}
"""The words for flags. `none` has no bit: alone it says that there are no flags.

`fallback`: a client whose real server has weight 0 gets another one; without it the client is refused. `port`: each
source port is a client of its own.
"""

FALLBACK = ("sh-fallback", "mh-fallback")


def words_of(text: str) -> Iterator[str]:
    """The words of a list that is separated by commas or spaces."""
    return iter(text.replace(",", " ").split())


def flag_bits(words: Iterable[str], scheduler: str) -> int:
    """The kernel's bits for those of the words that have a meaning for this scheduler."""
    bits = 0
    for flag in (SCHEDULER_FLAGS[word] for word in words):
        bits |= flag.bit if flag.scheduler in {None, scheduler} else 0
    return bits


def flag_words(scheduler: str, flags: int) -> tuple[str, ...]:
    """The words for a virtual server's flags: the scheduler's own names where it has any, else the general ones."""
    words = {flag.bit: word for word, flag in SCHEDULER_FLAGS.items() if flag.scheduler in {None, scheduler}}
    return tuple(word for bit, word in sorted(words.items()) if flags & bit)


def parse_scheduler_flags(text: str) -> tuple[str, ...]:
    """Read flags of all schedulers, separated by commas: `sh-fallback,mh-fallback,mh-port`. Raises ValueError."""
    words = tuple(dict.fromkeys(words_of(text)))
    for word in words:
        if word not in SCHEDULER_FLAGS:
            raise ValueError(f"{word!r} is not a flag of a scheduler. Allowed: {', '.join(SCHEDULER_FLAGS)}")
    return words
