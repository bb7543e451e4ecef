"""The annotations of a Service that kroute reads, as a table, and the options that they set.

An annotation is looked up as `kroute.io/NAME`, else `kube-router.io/NAME`, else as the bare `NAME`. The first that
exists counts, even if its value is invalid. An invalid value changes nothing and becomes a Problem.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from kroute.model.addresses import canonical
from kroute.model.plan import Persistence, Problem, quoted, shortened
from kroute.settings import SCHEDULERS

PREFIXES = ("kroute.io/", "kube-router.io/", "")

MAX_PERSISTENCE_TIMEOUT = 31 * 24 * 3600
"""Seconds; `ipvsadm` has the same limit of 31 days. The kernel counts the timeout in jiffies in 32 bits: at 1,000 a
second they overflow after 49 days, so a longer timeout would silently become a short one."""


class SchedulerFlag(NamedTuple):
    """A word of `service.schedflags`: its kernel bit, and the only scheduler that it has a meaning for (None: any)."""

    bit: int
    scheduler: str | None


SCHEDULER_FLAGS = {
    "flag-1": SchedulerFlag(0x08, None),
    "flag-2": SchedulerFlag(0x10, None),
    "flag-3": SchedulerFlag(0x20, None),
    "sh-fallback": SchedulerFlag(0x08, "sh"),
    "sh-port": SchedulerFlag(0x10, "sh"),
    "mh-fallback": SchedulerFlag(0x08, "mh"),
    "mh-port": SchedulerFlag(0x10, "mh"),
}
"""`IP_VS_SVC_F_SCHED1..3` of `include/uapi/linux/ip_vs.h`, and their names for sh and mh (`ip_vs_mh.c`)."""


def flag_words(scheduler: str, flags: int) -> tuple[str, ...]:
    """The words for a virtual server's flags: the scheduler's own names where it has any, else the general ones."""
    words = {flag.bit: word for word, flag in SCHEDULER_FLAGS.items() if flag.scheduler in {None, scheduler}}
    return tuple(word for bit, word in sorted(words.items()) if flags & bit)


class Options(msgspec.Struct, frozen=True):
    """How one Service is served. `persistence_timeout` is in seconds, 0 for none.

    `hairpin`: whether the Service's pods may reach themselves through it. `skip_load_balancer_ips`: whether the nodes
    leave the load balancer's addresses unserved.
    """

    scheduler: str = SCHEDULERS[0]
    flags: int = 0
    persistence_timeout: int = 0
    ipv4_prefix: int = 32
    ipv6_prefix: int = 128
    hairpin: bool = True
    skip_load_balancer_ips: bool = False

    def persistence_for(self, address: str) -> Persistence | None:
        """The persistence of a virtual server on this address, or None."""
        if not self.persistence_timeout:
            return None
        return Persistence(self.persistence_timeout, self.ipv6_prefix if ":" in address else self.ipv4_prefix)


_SWITCH = {"on": True, "true": True, "": True, "off": False, "false": False}

Applied = tuple[Options, str | None]
"""The options after a value was applied as far as possible, and what is wrong with the value (None: nothing)."""


class Annotation(NamedTuple):
    """A row of the table. `allowed` ends the sentence "Allowed: ..." of the Problem that an invalid value causes."""

    name: str
    meaning: str
    allowed: str
    apply: Callable[[Options, str], Applied]


def _apply_scheduler(options: Options, value: str) -> Applied:
    if value not in SCHEDULERS:
        return options, f"is not a scheduler; {options.scheduler} serves"
    return msgspec.structs.replace(options, scheduler=value), None


def _apply_flags(options: Options, value: str) -> Applied:
    """Apply the flags that the scheduler has. An invalid word does not prevent the valid ones."""
    bits, refused = 0, []
    for word in filter(None, map(str.strip, value.split(","))):
        flag = SCHEDULER_FLAGS.get(word)
        if flag is None:
            refused.append(f"{quoted(word)} is not a flag")
        elif flag.scheduler not in {None, options.scheduler}:
            refused.append(f"{word} is a flag of {flag.scheduler}, not of {options.scheduler}")
        else:
            bits |= flag.bit
    complaint = f"is obeyed only in part: {', '.join(refused[:3])}" if refused else None
    return msgspec.structs.replace(options, flags=bits), complaint


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


def _apply_hairpin(options: Options, value: str) -> Applied:
    """Read a switch. Empty text means "on": kube-router looks only at whether its annotation exists."""
    switch = _SWITCH.get(value.lower())
    if switch is None:
        return options, f"is neither on nor off; {'on' if options.hairpin else 'off'} holds"
    return msgspec.structs.replace(options, hairpin=switch), None


def _apply_skip(options: Options, value: str) -> Applied:
    switch = _SWITCH.get(value.lower())
    if switch is None:
        return options, "is neither on nor off; the addresses are served"
    return msgspec.structs.replace(options, skip_load_balancer_ips=switch), None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _mask_length(text: str) -> int | None:
    """The length of a prefix given as a number or as a dotted mask without gaps, else None."""
    if canonical(text) != text or ":" in text:
        return _number(text)
    bits = "".join(f"{int(octet):08b}" for octet in text.split("."))
    return bits.count("1") if "01" not in bits else None


ANNOTATIONS = (
    Annotation(
        name="service.scheduler",
        meaning="the IPVS scheduler of every virtual server of the Service",
        allowed=", ".join(SCHEDULERS),
        apply=_apply_scheduler,
    ),
    Annotation(
        name="service.schedflags",
        meaning="flags of the scheduler, separated by commas",
        allowed=", ".join(SCHEDULER_FLAGS) + " (a flag with a scheduler's name for that scheduler only)",
        apply=_apply_flags,
    ),
    Annotation(
        name="service.persistence-timeout",
        meaning="seconds for which a client keeps its real server after its last use; overrides sessionAffinity",
        allowed=f"0 (no persistence) to {MAX_PERSISTENCE_TIMEOUT} seconds",
        apply=_apply_timeout,
    ),
    Annotation(
        name="service.persistence-netmask",
        meaning="clients of one network of this size keep one real server together",
        allowed="an IPv4 prefix length or mask (24 or 255.255.255.0), an IPv6 one above 32 (64), or both (24,64)",
        apply=_apply_netmask,
    ),
    Annotation(
        name="service.hairpin",
        meaning="whether a pod that reaches itself through the Service gets an answer, which then comes from the node",
        allowed="on, off",
        apply=_apply_hairpin,
    ),
    Annotation(
        name="service.skiplbips",
        meaning="the addresses of the Service's load balancer are not served by nodes",
        allowed="on, off",
        apply=_apply_skip,
    ),
)
"""Every annotation, in the order of application: the flags are read after the scheduler is known."""

ANNOTATION_NAMES = frozenset(prefix + row.name for prefix in PREFIXES for row in ANNOTATIONS)
"""The full names of all annotations that kroute reads."""


def apply_annotations(options: Options, annotations: Mapping[str, str] | None) -> tuple[Options, list[Problem]]:
    """Override `options` by a Service's annotations.

    Returns a Problem for each value that cannot be applied in full.
    """
    problems: list[Problem] = []
    if not annotations:
        return options, problems
    for row in ANNOTATIONS:
        key = next((prefix + row.name for prefix in PREFIXES if prefix + row.name in annotations), None)
        if key is None:
            continue
        value = annotations[key].strip()
        options, complaint = row.apply(options, value)
        if complaint is not None:
            subject = f"annotation {key}={shortened(value)}"
            problems.append(Problem("InvalidAnnotation", subject, f"{subject} {complaint}. Allowed: {row.allowed}."))
    return options, problems
