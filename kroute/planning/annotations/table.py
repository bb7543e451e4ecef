"""The annotations of a Service that kroute reads, as a table.

An annotation is looked up by its name `kroute.io/…`, then by its aliases. The first that exists counts, even if its
value is invalid. An invalid value changes nothing and becomes a Problem. An annotation with the prefix `kroute.io/`
that is not in the table becomes a Problem as well (`unknown`).
"""

from collections.abc import Callable, Mapping

import msgspec

from kroute.base.schedulers import IN_STEPS, SCHEDULER_FLAGS, SCHEDULERS, flag_bits, words_of
from kroute.model.addresses import canonical
from kroute.model.plan import Problem, quoted, shortened
from kroute.planning.annotations.options import Options
from kroute.planning.annotations.times import MAX_SLOW_START, hindrance, read_ejection, read_seconds
from kroute.planning.weights.text import MAX_WEIGHT, read_locality, read_weights

PREFIX = "kroute.io/"
"""The prefix of kroute's own annotations."""

MAX_PERSISTENCE_TIMEOUT = 31 * 24 * 3600
"""Seconds; `ipvsadm` has the same limit of 31 days. The kernel counts the timeout in jiffies in 32 bits: at 1,000 a
second they overflow after 49 days, so a longer timeout would silently become a short one."""


_SWITCH = {"on": True, "true": True, "": True, "off": False, "false": False}

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


def _names(word: str, *others: str) -> tuple[str, ...]:
    """kroute's own name, and the words of kube-router with each prefix that they may have."""
    prefixes = (PREFIX, "kube-router.io/", "")
    return tuple(dict.fromkeys([PREFIX + word, *(prefix + other for other in others for prefix in prefixes)]))


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


def _apply_director_weight(options: Options, value: str) -> Applied:
    if value not in {"endpoints", "equal"}:
        return options, "is not a weight; all nodes weigh the same"
    return msgspec.structs.replace(options, weighs_endpoints=value == "endpoints"), None


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
        names=_names("scheduler", "service.scheduler"),
        meaning="the IPVS scheduler of every virtual server of the Service",
        allowed=", ".join(SCHEDULERS),
        apply=_apply_scheduler,
    ),
    Annotation(
        names=_names("scheduler-flags", "service.schedflags"),
        meaning="all flags of the scheduler, separated by commas, in place of those of --scheduler-flags",
        allowed=", ".join(SCHEDULER_FLAGS) + " (a flag with a scheduler's name for that scheduler only)",
        apply=_apply_flags,
    ),
    Annotation(
        names=_names("persistence-timeout", "service.persistence-timeout"),
        meaning="seconds for which a client keeps its real server after its last use; overrides sessionAffinity",
        allowed=f"0 (no persistence) to {MAX_PERSISTENCE_TIMEOUT} seconds",
        apply=_apply_timeout,
    ),
    Annotation(
        names=_names("persistence-netmask", "service.persistence-netmask"),
        meaning="clients of one network of this size keep one real server together",
        allowed="an IPv4 prefix length or mask (24 or 255.255.255.0), an IPv6 one above 32 (64), or both (24,64)",
        apply=_apply_netmask,
    ),
    Annotation(
        names=_names("hairpin", "service.hairpin"),
        meaning="whether a pod that reaches itself through the Service gets an answer, which then comes from the node",
        allowed="on, off",
        apply=_apply_hairpin,
    ),
    Annotation(
        names=_names("skip-load-balancer-ips", "service.skiplbips"),
        meaning="the addresses of the Service's load balancer are not served by nodes",
        allowed="on, off",
        apply=_apply_skip,
    ),
    Annotation(
        names=_names("local", "service.local"),
        meaning="external clients are served as with externalTrafficPolicy Local, whatever that says",
        allowed="on, off",
        apply=_apply_local,
    ),
    Annotation(
        names=_names("slow-start", "slow-start"),
        meaning="for how long the share of a new endpoint climbs, beside those that serve already",
        allowed=f"0 (at once), or 1s to 1h, with one of the schedulers {', '.join(IN_STEPS)}",
        apply=_apply_slow_start,
        needs_shares=True,
    ),
    Annotation(
        names=_names("weights"),
        meaning="what the real servers of a zone or a node weigh, for this Service",
        allowed=f"zone/NAME=WEIGHT and node/NAME=WEIGHT, separated by commas, with weights from 0 to {MAX_WEIGHT}",
        apply=_apply_weights,
        needs_shares=True,
    ),
    Annotation(
        names=_names("locality"),
        meaning="real servers on the client's node, or in its zone, come first, till their share is used up",
        allowed="prefer-node or prefer-zone, and behind a comma spill with 1% to 100%",
        apply=_apply_locality,
        needs_shares=True,
    ),
    Annotation(
        names=_names("ejection"),
        meaning="whether endpoints that do not answer new connections over TCP get none for a while",
        allowed="on, off, or after 5s to 5m (without an answer) and hold 5s to 1h, separated by a comma",
        apply=_apply_ejection,
    ),
    Annotation(
        names=_names("direct-return", "service.dsr"),
        meaning="the Service's pods answer the clients of its external addresses themselves (--direct-return)",
        allowed="tunnel",
        apply=_apply_direct_return,
    ),
    Annotation(
        names=_names("director-weight", "service.director-weight"),
        meaning="what a node weighs on a director: the number of its ready endpoints, or as much as every other node",
        allowed="endpoints, equal",
        apply=_apply_director_weight,
    ),
)
"""Every annotation, in the order of application: the flags are read after the scheduler is known."""

ANNOTATION_NAMES = frozenset(name for row in ANNOTATIONS for name in row.names)
"""The full names of all annotations that kroute reads, with the aliases."""

_BY_NAME = {row.name: row for row in ANNOTATIONS}
_WITH_SHARES = Options("wrr")


def apply_annotations(options: Options, annotations: Mapping[str, str] | None) -> tuple[Options, list[Problem]]:
    """Override `options` by a Service's annotations.

    Returns a Problem for each value that cannot be applied in full.
    """
    problems: list[Problem] = []
    if not annotations:
        return options, problems
    if options.is_open and needing_shares(annotations) is not None:
        options = options.sharing()
    for row in ANNOTATIONS:
        key = row.written_in(annotations)
        if key is None:
            continue
        value = annotations[key].strip()
        options, complaint = row.apply(options, value)
        if complaint is not None:
            subject = f"annotation {key}={shortened(value)}"
            problems.append(Problem("InvalidAnnotation", subject, f"{subject} {complaint}. Allowed: {row.allowed}."))
    return options, problems


def needing_shares(annotations: Mapping[str, str]) -> str | None:
    """The first annotation, as it is written, that has an effect with a scheduler by weight only; None: there is none.

    A value that is invalid or changes nothing, such as `kroute.io/slow-start: "0"`, does not count.
    """
    for row in ANNOTATIONS:
        key = row.written_in(annotations) if row.needs_shares else None
        if key is not None and row.apply(_WITH_SHARES, annotations[key].strip())[0] != _WITH_SHARES:
            return key
    return None


def chosen_scheduler(annotations: Mapping[str, str]) -> str | None:
    """The annotation, as it is written, that chooses the scheduler; None: none does, or its value is invalid."""
    key = _BY_NAME[f"{PREFIX}scheduler"].written_in(annotations)
    return key if key is not None and annotations[key].strip() in SCHEDULERS else None


def as_written(name: str, annotations: Mapping[str, str] | None) -> str:
    """The name or alias by which an object has this annotation, for messages; `name` if it has none."""
    return _BY_NAME[name].written_in(annotations or {}) or name
