"""The annotations of a Service that kroute reads, as a table.

An annotation is looked up as `kroute.io/NAME`, else `kube-router.io/NAME`, else as the bare `NAME`. The first that
exists counts, even if its value is invalid. An invalid value changes nothing and becomes a Problem. Names that
kube-router does not have are looked up as `kroute.io/NAME` alone.
"""

from collections.abc import Callable, Mapping

import msgspec

from kroute.model.addresses import canonical
from kroute.model.plan import Problem, quoted, shortened
from kroute.planning.annotations.options import Options
from kroute.planning.annotations.times import MAX_SLOW_START, hindrance, read_ejection, read_seconds
from kroute.planning.weights.text import MAX_WEIGHT, read_locality, read_weights
from kroute.schedulers import IN_STEPS, SCHEDULER_FLAGS, SCHEDULERS, flag_bits, words_of

PREFIXES = ("kroute.io/", "kube-router.io/", "")

MAX_PERSISTENCE_TIMEOUT = 31 * 24 * 3600
"""Seconds; `ipvsadm` has the same limit of 31 days. The kernel counts the timeout in jiffies in 32 bits: at 1,000 a
second they overflow after 49 days, so a longer timeout would silently become a short one."""


_SWITCH = {"on": True, "true": True, "": True, "off": False, "false": False}

Applied = tuple[Options, str | None]
"""The options after a value was applied as far as possible, and what is wrong with the value (None: nothing)."""


class Annotation(msgspec.Struct, frozen=True):
    """A row of the table. `allowed` ends the sentence "Allowed: ..." of the Problem that an invalid value causes."""

    name: str
    meaning: str
    allowed: str
    apply: Callable[[Options, str], Applied]
    prefixes: tuple[str, ...] = PREFIXES


def _apply_scheduler(options: Options, value: str) -> Applied:
    if value not in SCHEDULERS:
        return options, f"is not a scheduler; {options.scheduler} serves"
    return msgspec.structs.replace(options, scheduler=value), None


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
    if not refused:
        return msgspec.structs.replace(options, chosen_flags=flag_bits(accepted, options.scheduler)), None
    why = ", ".join(refused[:3])
    if not accepted:
        return options, f"changes no flag: {why}"
    chosen = flag_bits(accepted, options.scheduler)
    return msgspec.structs.replace(options, chosen_flags=chosen), f"is obeyed only in part: {why}"


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


def _apply_local(options: Options, value: str) -> Applied:
    """Read a switch; unlike those above, kube-router's annotation needs a value."""
    switch = _SWITCH.get(value.lower()) if value else None
    if switch is None:
        return options, "is neither on nor off; externalTrafficPolicy of the Service holds"
    return msgspec.structs.replace(options, is_local=switch), None


def _apply_direct_return(options: Options, value: str) -> Applied:
    if value != "tunnel":
        return options, "is no way of direct return; nodes serve by address translation"
    return msgspec.structs.replace(options, direct_return=True), None


def _apply_slow_start(options: Options, value: str) -> Applied:
    seconds = read_seconds(value)
    if seconds is None or seconds > MAX_SLOW_START:
        return options, "is not a slow start; new endpoints get their whole share at once"
    if seconds and options.scheduler not in IN_STEPS:
        return options, f"is not obeyed: with the scheduler {options.scheduler} a share cannot climb in steps"
    return msgspec.structs.replace(options, slow_start=seconds), None


def _apply_ejection(options: Options, value: str) -> Applied:
    ejection, complaint = read_ejection(value)
    if ejection is not None and (why := hindrance(options.scheduler, options.flags, has_counters=options.has_counters)):
        return options, why
    return msgspec.structs.replace(options, ejection=ejection), complaint


def _apply_weights(options: Options, value: str) -> Applied:
    weights, complaint = read_weights(value)
    return msgspec.structs.replace(options, weights=weights), complaint


def _apply_locality(options: Options, value: str) -> Applied:
    locality, complaint = read_locality(value)
    return msgspec.structs.replace(options, locality=locality), complaint


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
        meaning="all flags of the scheduler, separated by commas, in place of those of --scheduler-flags",
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
    Annotation(
        name="service.local",
        meaning="external clients are served as with externalTrafficPolicy Local, whatever that says",
        allowed="on, off",
        apply=_apply_local,
    ),
    Annotation(
        name="slow-start",
        meaning="for how long the share of a new endpoint climbs, beside those that serve already",
        allowed=f"0 (at once), or 1s to 1h, with one of the schedulers {', '.join(IN_STEPS)}",
        apply=_apply_slow_start,
    ),
    Annotation(
        name="weights",
        meaning="what the real servers of a zone or a node weigh, for this Service",
        allowed=f"zone/NAME=WEIGHT and node/NAME=WEIGHT, separated by commas, with weights from 0 to {MAX_WEIGHT}",
        apply=_apply_weights,
        prefixes=PREFIXES[:1],
    ),
    Annotation(
        name="locality",
        meaning="real servers on the client's node, or in its zone, come first, till their share is used up",
        allowed="prefer-node or prefer-zone, and behind a comma spill with 1% to 100%",
        apply=_apply_locality,
        prefixes=PREFIXES[:1],
    ),
    Annotation(
        name="ejection",
        meaning="whether endpoints that do not answer new connections over TCP get none for a while",
        allowed="on, off, or after 5s to 5m (without an answer) and hold 5s to 1h, separated by a comma",
        apply=_apply_ejection,
        prefixes=PREFIXES[:1],
    ),
    Annotation(
        name="service.dsr",
        meaning="the Service's pods answer the clients of its external addresses themselves (--direct-return)",
        allowed="tunnel",
        apply=_apply_direct_return,
    ),
)
"""Every annotation, in the order of application: the flags are read after the scheduler is known."""

ANNOTATION_NAMES = frozenset(prefix + row.name for row in ANNOTATIONS for prefix in row.prefixes)
"""The full names of all annotations that kroute reads."""


def apply_annotations(options: Options, annotations: Mapping[str, str] | None) -> tuple[Options, list[Problem]]:
    """Override `options` by a Service's annotations.

    Returns a Problem for each value that cannot be applied in full.
    """
    problems: list[Problem] = []
    if not annotations:
        return options, problems
    for row in ANNOTATIONS:
        key = next((prefix + row.name for prefix in row.prefixes if prefix + row.name in annotations), None)
        if key is None:
            continue
        value = annotations[key].strip()
        options, complaint = row.apply(options, value)
        if complaint is not None:
            subject = f"annotation {key}={shortened(value)}"
            problems.append(Problem("InvalidAnnotation", subject, f"{subject} {complaint}. Allowed: {row.allowed}."))
    return options, problems
