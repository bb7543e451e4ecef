"""How one Service is served: the settings, overridden by `sessionAffinity` and by annotations.

An annotation is looked up by its name `kroute.io/…`, then by its aliases. The first that exists counts, even if its
value is invalid. An invalid value changes nothing and becomes a Problem. The rows of what every Service has are here;
those of a feature that few Services use are beside its step (`kroute.planning.features`, where the whole table is).
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Self, TypeVar

import msgspec

from kroute.base.schedulers import SCHEDULER_FLAGS, SCHEDULERS, SHARING, flag_bits, words_of
from kroute.model.addresses import canonical
from kroute.model.plan import Persistence, RealServer, VirtualServer, VirtualServerKey, quoted
from kroute.settings import AUTO, Settings

T = TypeVar("T")

PREFIX = "kroute.io/"
"""The prefix of kroute's own annotations."""

MAX_PERSISTENCE_TIMEOUT = 31 * 24 * 3600
"""Seconds; `ipvsadm` has the same limit of 31 days. The kernel counts the timeout in jiffies in 32 bits: at 1,000 a
second they overflow after 49 days, so a longer timeout would silently become a short one."""

_SECONDS = re.compile(r"([0-9]{1,6})(s|m|h|)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SWITCH = {"on": True, "true": True, "": True, "off": False, "false": False}


class Options(msgspec.Struct, frozen=True):
    """How one Service is served. `persistence_timeout` is in seconds, 0 for none.

    `scheduler_flags` are those that the scheduler gets if the Service says nothing, in words. `chosen_flags` are the
    Service's own, in the kernel's bits; None if it has none.
    `hairpin`: whether the Service's pods may reach themselves through it. `skip_load_balancer_ips`: whether the nodes
    leave the load balancer's addresses unserved. `is_local`: whether `externalTrafficPolicy` counts as Local.
    `has_counters`: whether the kernel counts what real servers answer.
    `weighs_endpoints`: whether a director weighs nodes by their endpoints.
    `is_open`: whether nothing has chosen the scheduler, so that what needs shares by weight may change it.
    `asked` is what the Service asks of features, one value for each type; most Services ask for nothing.
    """

    scheduler: str = SCHEDULERS[0]
    scheduler_flags: tuple[str, ...] = ()
    chosen_flags: int | None = None
    persistence_timeout: int = 0
    ipv4_prefix: int = 32
    ipv6_prefix: int = 128
    hairpin: bool = True
    skip_load_balancer_ips: bool = False
    is_local: bool = False
    has_counters: bool = True
    weighs_endpoints: bool = False
    is_open: bool = False
    asked: tuple[object, ...] = ()

    @classmethod
    def by_default(cls, settings: Settings, persistence_timeout: int) -> Self:
        """The options of a Service that has no annotations."""
        return cls(
            settings.usual_scheduler,
            settings.scheduler_flags,
            persistence_timeout=persistence_timeout,
            hairpin=settings.hairpin,
            has_counters=settings.ipvs_estimation is not False,
            is_open=settings.scheduler == AUTO,
        )

    def asking(self, value: object | None) -> Self:
        """The same, and this is asked of a feature. None: nothing is."""
        return self if value is None else msgspec.structs.replace(self, asked=(*self.asked, value))

    def of(self, kind: type[T]) -> T | None:
        """What the Service asks of the feature that has this type of value; None: nothing."""
        return next((value for value in self.asked if isinstance(value, kind)), None)

    def sharing(self) -> Self:
        """The same with a scheduler that divides connections by weight."""
        return msgspec.structs.replace(self, scheduler=SHARING)

    @property
    def flags(self) -> int:
        """The flags of the scheduler, in the kernel's bits."""
        return _usual_flags(self.scheduler_flags, self.scheduler) if self.chosen_flags is None else self.chosen_flags

    def virtual_server(self, key: VirtualServerKey, real_servers: tuple[RealServer, ...], method: str) -> VirtualServer:
        """The virtual server with these options."""
        persistence = self.persistence_for(key.address)
        return VirtualServer(key, self.scheduler, self.flags, persistence, real_servers, method=method)

    def persistence_for(self, address: str) -> Persistence | None:
        """The persistence of a virtual server on this address, or None."""
        if not self.persistence_timeout:
            return None
        return Persistence(self.persistence_timeout, self.ipv6_prefix if ":" in address else self.ipv4_prefix)


_usual_flags = lru_cache(maxsize=2 * len(SCHEDULERS))(flag_bits)

Applied = tuple[Options, str | None]
"""The options after a value was applied as far as possible, and what is wrong with the value (None: nothing)."""


class Annotation(msgspec.Struct, frozen=True):
    """A row of the table. `names` are the annotation's own name and its aliases, in the order in which they count.

    `allowed` ends the sentence "Allowed: ..." of the Problem that an invalid value causes. `needs_shares`: it has an
    effect only with a scheduler that divides connections by weight.
    """

    names: tuple[str, ...]
    meaning: str
    allowed: str
    apply: Callable[[Options, str], Applied]
    needs_shares: bool = False

    @property
    def name(self) -> str:
        """The name that the documentation uses."""
        return self.names[0]

    def written_in(self, annotations: Mapping[str, str]) -> str | None:
        """The name by which an object has the annotation, or None."""
        return next((name for name in self.names if name in annotations), None)


def names(word: str, *others: str) -> tuple[str, ...]:
    """kroute's own name of an annotation, and the words of kube-router with each prefix that they may have."""
    prefixes = (PREFIX, "kube-router.io/", "")
    return tuple(dict.fromkeys([PREFIX + word, *(prefix + other for other in others for prefix in prefixes)]))


def alone(row: Annotation, annotations: Mapping[str, str] | None) -> Options:
    """The options of a Service of whose annotations only this one counts."""
    name = row.written_in(annotations) if annotations else None
    return row.apply(Options(), annotations[name].strip())[0] if annotations and name is not None else Options()


def _apply_scheduler(options: Options, value: str) -> Applied:
    if value not in SCHEDULERS:
        return options, f"is not a scheduler; {options.scheduler} serves"
    return msgspec.structs.replace(options, scheduler=value, is_open=False), None


def _apply_flags(options: Options, value: str) -> Applied:
    """Apply the flags that the scheduler has, in place of the settings' ones.

    An invalid word does not prevent the valid ones. With invalid words only, the settings' flags remain.
    """
    accepted, refused = [], []
    for word in words_of(value):
        flag = SCHEDULER_FLAGS.get(word)
        if flag is None:
            refused.append(f"{quoted(word)} is not a flag")
        elif flag.scheduler not in {None, options.scheduler}:
            refused.append(f"{word} is a flag of {flag.scheduler}, not of {options.scheduler}")
        else:
            accepted.append(word)
    why = ", ".join(refused[:3])
    if refused and not accepted:
        return options, f"changes no flag: {why}"
    chosen = msgspec.structs.replace(options, chosen_flags=flag_bits(accepted, options.scheduler))
    return chosen, f"is obeyed only in part: {why}" if refused else None


def _apply_timeout(options: Options, value: str) -> Applied:
    seconds = _number(value)
    if seconds is None or seconds > MAX_PERSISTENCE_TIMEOUT:
        return options, "is not a persistence timeout; sessionAffinity of the Service serves"
    return msgspec.structs.replace(options, persistence_timeout=seconds), None


def _apply_netmask(options: Options, value: str) -> Applied:
    """Read `IPV4`, `IPV4,IPV6`, or a lone number above 32, which can only be a prefix length of IPv6."""
    words = [word.strip() for word in value.split(",")]
    lengths = [_mask_length(words[0]), *map(_number, words[1:])]
    match lengths:
        case [int(ipv4)] if 1 <= ipv4 <= 32:
            return msgspec.structs.replace(options, ipv4_prefix=ipv4), None
        case [int(ipv6)] if 32 < ipv6 <= 128:
            return msgspec.structs.replace(options, ipv6_prefix=ipv6), None
        case [int(ipv4), int(ipv6)] if 1 <= ipv4 <= 32 and 1 <= ipv6 <= 128:
            return msgspec.structs.replace(options, ipv4_prefix=ipv4, ipv6_prefix=ipv6), None
    return options, "is not a netmask; every client address persists for itself"


def _switch(field: str, otherwise: str, *, needs_value: bool = False) -> Callable[[Options, str], Applied]:
    """Read a switch. Empty text means "on", unless it `needs_value`: kube-router looks only at whether it exists."""

    def apply_switch(options: Options, value: str) -> Applied:
        switch = switch_of(value) if value or not needs_value else None
        if switch is None:
            return options, f"is neither on nor off; {otherwise.format('on' if getattr(options, field) else 'off')}"
        return msgspec.structs.replace(options, **{field: switch}), None

    return apply_switch


def _apply_director_weight(options: Options, value: str) -> Applied:
    if value not in {"endpoints", "equal"}:
        return options, "is not a weight; all nodes weigh the same"
    return msgspec.structs.replace(options, weighs_endpoints=value == "endpoints"), None


def switch_of(text: str) -> bool | None:
    """What a switch says: on, off, or neither. Empty text means on."""
    return _SWITCH.get(text.lower())


def read_seconds(text: str) -> int | None:
    """A number of seconds, or of the unit s, m or h; else None."""
    match = _SECONDS.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _mask_length(text: str) -> int | None:
    """The length of a prefix given as a number or as a dotted mask without gaps, else None."""
    if canonical(text) != text or ":" in text:
        return _number(text)
    bits = "".join(f"{int(octet):08b}" for octet in text.split("."))
    return bits.count("1") if "01" not in bits else None


SCHEDULER = Annotation(
    names=names("scheduler", "service.scheduler"),
    meaning="the IPVS scheduler of every virtual server of the Service",
    allowed=", ".join(SCHEDULERS),
    apply=_apply_scheduler,
)
SKIP_LOAD_BALANCER_IPS = Annotation(
    names=names("skip-load-balancer-ips", "service.skiplbips"),
    meaning="the addresses of the Service's load balancer are not served by nodes",
    allowed="on, off",
    apply=_switch("skip_load_balancer_ips", "the addresses are served"),
)
LOCAL_OUTSIDE = Annotation(
    names=names("local", "service.local"),
    meaning="external clients are served as with externalTrafficPolicy Local, whatever that says",
    allowed="on, off",
    apply=_switch("is_local", "externalTrafficPolicy of the Service holds", needs_value=True),
)

ORDINARY = (
    SCHEDULER,
    Annotation(
        names=names("scheduler-flags", "service.schedflags"),
        meaning="all flags of the scheduler, separated by commas, in place of those of --scheduler-flags",
        allowed=", ".join(SCHEDULER_FLAGS) + " (a flag with a scheduler's name for that scheduler only)",
        apply=_apply_flags,
    ),
    Annotation(
        names=names("persistence-timeout", "service.persistence-timeout"),
        meaning="seconds for which a client keeps its real server after its last use; overrides sessionAffinity",
        allowed=f"0 (no persistence) to {MAX_PERSISTENCE_TIMEOUT} seconds",
        apply=_apply_timeout,
    ),
    Annotation(
        names=names("persistence-netmask", "service.persistence-netmask"),
        meaning="clients of one network of this size keep one real server together",
        allowed="an IPv4 prefix length or mask (24 or 255.255.255.0), an IPv6 one above 32 (64), or both (24,64)",
        apply=_apply_netmask,
    ),
    Annotation(
        names=names("hairpin", "service.hairpin"),
        meaning="whether a pod that reaches itself through the Service gets an answer, which then comes from the node",
        allowed="on, off",
        apply=_switch("hairpin", "{} holds"),
    ),
    SKIP_LOAD_BALANCER_IPS,
    LOCAL_OUTSIDE,
)
"""The annotations of what every Service has, in the order of application: the flags come after the scheduler."""

DIRECTOR_WEIGHT = Annotation(
    names=names("director-weight", "service.director-weight"),
    meaning="what a node weighs on a director: the number of its ready endpoints, or as much as every other node",
    allowed="endpoints, equal",
    apply=_apply_director_weight,
)
