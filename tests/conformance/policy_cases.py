"""Cases about NetworkPolicies, as data: what Kubernetes' own tests and the generator of cyclonus have applied.

Kubernetes' cases are those of `test/e2e/network/netpol/network_policy.go` (1.36), in the order of their rows in
`rows.py`, with the calls that their authors expect to be refused. Those of cyclonus are those of its `pkg/generator`
(mattfenwick/cyclonus, 12f646f): most replace one field of one policy. It asks an oracle of its own what to expect.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from itertools import combinations, product
from typing import NamedTuple

from tests.lab.objects import Object, identity
from tests.lab.reachability import (
    HOMES,
    NAMESPACES,
    PODS,
    PORTS,
    PROTOCOLS,
    namespace_object,
    pod_object,
    port_name,
)
from tests.unit.planning.policies.cluster import block, egress, ingress, pods_with, policy

Refused = Mapping[tuple[str, int], str]
"""By protocol and port, which calls are refused, for `cells`."""


class Step(NamedTuple):
    """Objects that are applied, and deleted, at once; and what is then refused, if the case says so."""

    applied: list[Object]
    refused: Refused = {}  # noqa: RUF012  nobody changes it
    deleted: list[Object] = []  # noqa: RUF012  as above


class Case(NamedTuple):
    name: str
    steps: list[Step]

    @property
    def protocols(self) -> set[str]:
        """The protocols that the case is about; none if it is about all."""
        return {protocol for step in self.steps for protocol, _ in step.refused}

    def states(self) -> Iterator[list[Object]]:
        """All objects after each step."""
        present = {identity(item): item for item in WORLD}
        for step in self.steps:
            present |= {identity(item): item for item in step.applied}
            for item in step.deleted:
                del present[identity(item)]
            yield list(present.values())


def cells(text: str) -> set[tuple[str, str]]:
    """The pairs of pods that `x/a>*, *>y but z>y/c` means. What comes after `but` is not among them."""
    found: list[set[tuple[str, str]]] = [
        {
            pair
            for arrow in part.split(", ") if arrow
            for pair in product(PODS, PODS)
            if all(_is_of(pod, pattern) for pod, pattern in zip(pair, arrow.split(">"), strict=True))
        }
        for part in text.partition(" but ")[::2]
    ]  # fmt: skip
    return found[0] - found[1]


def _is_of(pod: str, pattern: str) -> bool:
    return pattern in {"*", pod} or pod.startswith(f"{pattern}/")


WORLD = [*(namespace_object(name) for name in NAMESPACES), *(pod_object(pod) for pod in PODS)]
"""What there is before each case."""

DEFAULT_LABEL = "kubernetes.io/metadata.name"
OF_A: Object = {"matchLabels": {"pod": "a"}}
EVERY_NAMESPACE: Object = {"namespaceSelector": {}}
BOTH = ["Ingress", "Egress"]
Peers = list[Object]


def one_of(key: str, *values: str, operator: str = "In") -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def of_namespace(name: str, **further: Object) -> Object:
    """A peer: the pods of a namespace, by the label that the API server gives it, or some of them."""
    return {"namespaceSelector": {"matchLabels": {DEFAULT_LABEL: name}}, **further}


def elsewhere(*names: str, **further: Object) -> Object:
    """A peer: the pods of all other namespaces, or some of them."""
    return {"namespaceSelector": one_of(DEFAULT_LABEL, *names, operator="NotIn"), **further}


def around(pod: str, *lengths: int, without: str | None = None) -> Peers:
    """The networks of a pod's two addresses, with these lengths, as they are written: with all bits of the address."""
    of_pod, excepted = HOMES[pod][1:], HOMES[without][1:] if without else (None, None)
    return [
        block(f"{address}/{length}", *([f"{hole}/{128 if ':' in hole else 32}"] if hole else []))
        for address, length, hole in zip(of_pod, lengths, excepted, strict=True)
    ]


def relabelled(item: Object, **labels: str) -> Object:
    """The same object with these labels alone."""
    return {**item, "metadata": {**item["metadata"], "labels": labels}}


def in_x(name: str, made: Object | None = None, **fields: object) -> Object:
    """A policy of x with this name. No name is the beginning of another one, in any namespace."""
    item = made or policy(**fields)  # type: ignore[arg-type]
    return {**item, "metadata": {"name": f"{name}-x", "namespace": "x"}}


def in_y(name: str, made: Object) -> Object:
    return {**made, "metadata": {"name": f"{name}-y", "namespace": "y"}}


# ---- Kubernetes' own ---------------------------------------------------------------------------------------------

TCP80, TCP81, UDP80, UDP81, SCTP80, SCTP81 = (
    (protocol, port) for protocol, port in product(("TCP", "UDP", "SCTP"), (80, 81))
)
ONLY_X_B, ONLY_Y, ONLY_Y_A = "*>x/a but x/b>x/a", "x>x/a, z>x/a", "*>x/a but y/a>x/a"

DENY_INGRESS = in_x("deny", policyTypes=["Ingress"])
DENY_BOTH = in_x("deny", policyTypes=BOTH)
FROM_Y = ingress(of_namespace("y"), selector=OF_A)
FROM_Y_A = ingress(of_namespace("y", podSelector=OF_A), selector=OF_A)
TO_Y_A = egress(of_namespace("y", podSelector=OF_A), selector=OF_A)
FROM_X_A = [in_y(f"from-{pod}", ingress(of_namespace("x", podSelector=OF_A), selector={"matchLabels": {"pod": pod}}))
            for pod in "ab"]  # fmt: skip
EXCEPT_B = in_x("cidr", egress(*around("x/a", 4, 4, without="x/b"), selector=OF_A))


def both_ways(*ports: Object) -> Object:
    """x/b may call x/a, which may call these ports."""
    rules = {"ingress": [{"from": [pods_with(pod="b")]}], "egress": [{"ports": list(ports)}]}
    return in_x("both", policyTypes=BOTH, selector=OF_A, **rules)


def once(applied: Object | list[Object], refused: str, *at: tuple[str, int]) -> list[Step]:
    """The steps of a case with one: what is applied, and what is refused at these ports; of none, at TCP 80."""
    return [Step(applied if isinstance(applied, list) else [applied], dict.fromkeys(at or (TCP80,), refused))]


def from_y(port: int | str, protocol: str = "TCP") -> Object:
    """Pods of y may call one port of x/a."""
    ports = [{"port": port, "protocol": protocol}]
    return in_x(f"from-y-{port}", ingress(of_namespace("y"), ports=ports, selector=OF_A))


KUBERNETES: list[list[Step]] = [
    once(DENY_INGRESS, "*>x"),
    once(DENY_BOTH, "*>x, x>*"),
    once(in_x("in", ingress(pods_with(pod="b"), selector=OF_A)), ONLY_X_B),
    once([DENY_INGRESS, in_x("in", ingress({"podSelector": {}, **EVERY_NAMESPACE}, selector=OF_A))], "*>x/b, *>x/c"),
    once(in_x("in", ingress({"namespaceSelector": {"matchLabels": {}}}, selector=OF_A)), ""),
    once(in_x("in", FROM_Y), ONLY_Y),
    once(in_x("in", ingress({"podSelector": one_of("pod", "b")}, selector=OF_A)), ONLY_X_B),
    once(in_x("in", ingress({"namespaceSelector": one_of(DEFAULT_LABEL, "y")}, selector=OF_A)), ONLY_Y),
    once(in_x("in", ingress(elsewhere("x"), pods_with(pod="b"), selector=OF_A)), "x/c>x/a"),
    once(in_x("in", ingress(elsewhere("x", **pods_with(pod="b")), selector=OF_A)), "*>x/a but y/b>x/a, z/b>x/a"),
    once(
        in_x("in", ingress(elsewhere("x", podSelector=one_of("pod", "b", "c")), selector=OF_A)),
        "x>x/a, y/a>x/a, z/a>x/a",
    ),
    once(in_x("in", ingress(pods_with(pod="b"), pods_with(pod="c"), selector=OF_A)), "*>x/a but x/b>x/a, x/c>x/a"),
    once(in_x("in", FROM_Y_A), ONLY_Y_A),
    once(from_y(81), ONLY_Y, TCP81),
    [Step([from_y(81)], {TCP81: ONLY_Y, TCP80: "*>x/a"}), Step([from_y(80)], {TCP80: ONLY_Y})],
    once(in_x("in", ingress()), "", TCP80, TCP81),
    [Step([in_x("in", ingress(ports=[{"port": "serve-81-tcp"}]))], {TCP80: "*>x", TCP81: ""})],
    [Step([from_y("serve-80-tcp")], {TCP80: ONLY_Y, TCP81: "*>x/a"})],
    [Step([in_x("out", egress(ports=[{"port": "serve-80-tcp"}]))], {TCP80: "", TCP81: "x>*"})],
    [Step([in_x("in", ingress())], {TCP81: ""}), Step([in_x("in", policyTypes=["Ingress"])], {TCP81: "*>x"})],
    [
        *once(in_x("in", ingress({"namespaceSelector": {"matchLabels": {"ns2": "updated"}}}, selector=OF_A)), "*>x/a"),
        *once(namespace_object("y", ns2="updated"), "*>x/a but y>x/a"),
    ],
    [
        *once(in_x("in", ingress(pods_with(pod="b", pod2="updated"), selector=OF_A)), "*>x/a"),
        *once(pod_object("x/b", pod2="updated"), ONLY_X_B),
    ],
    once(in_x("in", ingress({"podSelector": {"matchLabels": {}}})), "y>x, z>x"),
    [
        *once(in_x("deny", policyTypes=["Ingress"], selector={"matchLabels": {"target": "isolated"}}), ""),
        *once(pod_object("x/a", target="isolated"), "*>x/a"),
    ],
    once(in_x("deny", policyTypes=["Egress"], selector=OF_A), "x/a>*"),
    once(in_x("deny", policyTypes=["Egress"]), "x>*"),
    [Step([both_ways({"port": 80})], {TCP80: ONLY_X_B, TCP81: "*>x/a, x/a>* but x/b>x/a"})],
    once([in_x("out", TO_Y_A), *FROM_X_A], "x/a>*, *>y/a, *>y/b but x/a>y/a"),
    once(in_x("out", TO_Y_A), "x/a>* but x/a>y/a"),
    [Step([in_x("in", ingress(ports=[{"protocol": "TCP"}], selector=OF_A))], {TCP80: "", UDP80: "*>x/a"})],
    [
        *once(in_x("one-port", ingress(ports=[{"port": 80}])), "*>x", TCP81),
        *once(in_x("in", ingress()), "", TCP81),
    ],
    [*once(in_x("one-port", egress(ports=[{"port": 80}])), "x>*", TCP81), *once(in_x("out", egress()), "", TCP81)],
    [*once(DENY_BOTH, "*>x, x>*"), Step([], {TCP80: ""}, [DENY_BOTH])],
    once(in_x("cidr", egress(*around("y/b", 32, 128), selector=OF_A)), "x/a>* but x/a>y/b"),
    once(EXCEPT_B, "x/a>x/b"),
    [
        *once(EXCEPT_B, "x/a>x/b"),
        *once(in_x("cidr", egress(*around("x/b", 32, 128), selector=OF_A)), "x/a>* but x/a>x/b"),
    ],
    [
        *once(in_x("out", egress(selector=OF_A)), ""),
        *once(in_x("deny", policyTypes=["Ingress"], selector=OF_A), "*>x/a"),
    ],
    once([DENY_INGRESS, in_x("in", ingress(ports=[{"port": 81, "protocol": "SCTP"}], selector=OF_A))], "*>x", TCP81),
    once(in_x("in", ingress(ports=[{"port": 80, "protocol": "SCTP"}], selector=OF_A)), "*>x/a", TCP81),
    once(in_x("in", ingress(ports=[{"port": 81, "protocol": "UDP"}], selector=OF_A)), "*>x/a", TCP81),
    once(in_x("in", FROM_Y), ONLY_Y),
    once(in_x("out", egress(elsewhere("y"), selector=OF_A)), "x/a>y"),
    once(DENY_INGRESS, "*>x", UDP80),
    once(from_y(81, "UDP"), ONLY_Y, UDP81),
    once(in_x("in", FROM_Y_A), ONLY_Y_A, UDP80),
    once(DENY_INGRESS, "*>x", SCTP80),
    once(from_y(81, "SCTP"), ONLY_Y, SCTP81),
    once(in_x("in", FROM_Y_A), ONLY_Y_A, SCTP80),
]
"""The steps of each case, in the order of the rows."""

# ---- cyclonus ----------------------------------------------------------------------------------------------------

DIRECTIONS = {"ingress": "from", "egress": "to"}
"""With the field of a rule that has the peers."""
DNS = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
PEERS_OF_BASE: Mapping[str, Peers] = {
    "ingress": [{"podSelector": one_of("pod", "b", "c"), "namespaceSelector": one_of("ns", "x", "y")}],
    "egress": [{"podSelector": one_of("pod", "a", "b"), "namespaceSelector": one_of("ns", "y", "z")}],
}
X, C = {"matchLabels": {"ns": "x"}}, {"matchLabels": {"pod": "c"}}


def base(namespace: str = "x", selector: Object = OF_A, **rules: list[Object]) -> Object:
    """cyclonus' policy, with other rules of a direction: b and c of x and y may call TCP 80 of x/a, which may call
    that of a and b of y and z, and DNS.
    """
    of_direction = {direction: rules_with(direction) for direction in DIRECTIONS} | rules
    name = f"base-{namespace}"
    return policy(name, namespace=namespace, selector=selector, policyTypes=BOTH, **of_direction)


def rules_with(direction: str, peers: Peers | None = None, ports: list[Object] | None = None) -> list[Object]:
    """The rules of a direction with other peers, or ports."""
    first = {
        DIRECTIONS[direction]: PEERS_OF_BASE[direction] if peers is None else peers,
        "ports": [{"port": 80, "protocol": "TCP"}] if ports is None else ports,
    }
    return [first, *([DNS] if direction == "egress" else [])]


def within(pod: str, zeros: int, excepted: int | None = None) -> Peers:
    """The networks of a pod's two addresses without so many bits, and without a smaller network around the pod."""
    found = []
    for address in HOMES[pod][1:]:
        bits = 128 if ":" in address else 32
        texts = [str(ip_network(f"{address}/{bits - number}", strict=False)) for number in (zeros, excepted) if number]
        found.append(block(*texts))
    return found


PEERS: Mapping[str, Peers] = {
    "pods of its namespace": [{"podSelector": {}}],
    "pods of its namespace by label": [{"podSelector": C}],
    "all namespaces": [EVERY_NAMESPACE],
    "all pods of all namespaces": [{"podSelector": {}, **EVERY_NAMESPACE}],
    "pods of all namespaces by label": [{"podSelector": C, **EVERY_NAMESPACE}],
    "a namespace by label": [{"namespaceSelector": X}],
    "all pods of a namespace by label": [{"podSelector": {}, "namespaceSelector": X}],
    "pods by label of a namespace by label": [{"podSelector": C, "namespaceSelector": X}],
    "a network": within("z/c", 8),
    "a network with an exception": within("z/c", 8, 4),
}
PORTS_OF_RULES: list[Object] = [
    *(
        {**({"protocol": protocol} if protocol else {}), **({"port": number} if number else {})}
        for protocol in (None, *PROTOCOLS)
        for number in (None, *PORTS)
    ),
    *({"protocol": protocol, "port": port_name(protocol, number)} for protocol in PROTOCOLS for number in PORTS),
    *({"protocol": protocol, "port": 53, "endPort": last} for protocol in PROTOCOLS for last in (80, 84)),
    {"protocol": "TCP", "port": "serve-81-udp"},
    {"protocol": "TCP", "port": "serve-7981-udp"},
    {"protocol": "TCP", "port": 7981},
]
"""The last three name no port that a pod serves by this protocol."""
TWO_PORTS: list[list[Object]] = [
    [{}, {"port": 80}],
    [{}, {"port": "serve-80-tcp"}],
    [{}, {"protocol": "UDP"}],
    [{"port": 80}, {"port": 81}],
    [{"port": 80}, {"port": "serve-81-tcp"}],
    [{"port": 80}, {"protocol": "UDP", "port": "serve-81-udp"}],
    [{"protocol": "UDP", "port": 80}, {"protocol": "UDP", "port": "serve-81-udp"}],
]


def changed(name: str, **rules: list[Object]) -> Case:
    """A case with one step: cyclonus' policy with other rules of a direction."""
    return Case(name, [Step([base(**rules)])])


def said(ports: Iterable[Object]) -> str:
    """Ports as the name of a case has them."""
    return " and ".join(" ".join(map(str, port.values())) or "no field" for port in ports)


def of_peers() -> Iterator[Case]:
    """No peers, one, and each two of them; in both directions."""
    for direction in DIRECTIONS:
        yield changed(f"{direction}: everybody", **{direction: rules_with(direction, [])})
        for names in (*combinations(PEERS, 1), *combinations(PEERS, 2)):
            peers = [peer for name in names for peer in PEERS[name]]
            yield changed(f"{direction}: {' and '.join(names)}", **{direction: rules_with(direction, peers)})


def of_ports() -> Iterator[Case]:
    """No ports, one, and some pairs; in both directions."""
    for direction in DIRECTIONS:
        for ports in ([], *([port] for port in PORTS_OF_RULES), *TWO_PORTS):
            rules = rules_with(direction, ports=ports)
            yield changed(f"{direction}: {said(ports) or 'all ports'}", **{direction: rules})


def of_rules() -> Iterator[Case]:
    for direction, (name, rules) in product(DIRECTIONS, {"nothing": [], "everything": [{}]}.items()):
        yield changed(f"{direction}: {name}", **{direction: rules})


TARGETS = [
    *(Case(f"pods of {name}", [Step([base(name)])]) for name in NAMESPACES),
    Case("all pods", [Step([base(selector={})])]),
    Case("pods by label", [Step([base(selector=OF_A)])]),
    Case("pods by expression", [Step([base(selector=one_of("pod", "a", "b"))])]),
]
NAMESPACES_BY_DEFAULT_LABEL = [
    changed(f"{direction}: a namespace", **{direction: rules_with(direction, [of_namespace("z")])})
    for direction in DIRECTIONS
]


def news(label: str, value: str, **further: Object) -> Object:
    """The policy that lets in what gets a label later, as the selector `further` says."""
    selector = {"matchLabels": {label: value}}
    peer = {"podSelector": selector, **further} if further else {"namespaceSelector": selector}
    return base(ingress=rules_with("ingress", [peer]))


Y, Y_B, X_D, W, W_A = (
    *(namespace_object("y"), pod_object("y/b"), pod_object("x/d")),
    *(namespace_object("w"), pod_object("w/a")),
)
SECOND_Y = [namespace_object("y-2", ns="y"), pod_object("y-2/a"), pod_object("y-2/b")]
ACTIONS = [
    Case("a policy comes and goes", [Step([base()]), Step([], deleted=[base()])]),
    Case(
        "a policy changes",
        [
            Step([base()]),
            Step([base(ingress=rules_with("ingress", ports=[{"protocol": "UDP", "port": "serve-81-udp"}]))]),
        ],
    ),
    Case("a namespace comes and goes", [Step([base()]), Step(SECOND_Y), Step([], deleted=SECOND_Y)]),
    Case(
        "the labels of a namespace change and change back",
        [Step([news("new-ns", "qrs")]), Step([namespace_object("y", **{"new-ns": "qrs"})]), Step([Y])],
    ),
    Case("a pod comes and goes", [Step([base()]), Step([X_D]), Step([], deleted=[X_D])]),
    Case(
        "the labels of a pod change and change back",
        [
            Step([news("new-label", "abc", namespaceSelector=one_of("ns", "y", "z"))]),
            Step([pod_object("y/b", **{"new-label": "abc"})]),
            Step([Y_B]),
        ],
    ),
]
EXAMPLES = [
    Case(
        "one named port, and a namespace comes and goes",
        [
            Step([in_x("in", ingress(ports=[{"port": "serve-81-tcp"}]))]),
            Step([W, W_A]),
            Step([], deleted=[W_A]),
            Step([], deleted=[W]),
        ],
    )
]

SOURCE, DESTINATION = ("x", {"matchLabels": {"pod": "b"}}), ("y", {"matchLabels": {"pod": "c"}})
ALLOWED: Mapping[str, list[Peers] | None] = {
    "nothing": [],
    "everything": None,
    "all pods": [[EVERY_NAMESPACE]],
    "all addresses": [[block("0.0.0.0/0"), block("::/0")]],
    "no address": [[block("0.0.0.0/31"), block("::/127")]],
    "no pod": [[{"namespaceSelector": {"matchLabels": {"this-will-never-happen": "qrs123"}}}]],
}
"""What a policy allows: the peers of each rule; None: a rule without peers."""
Allowance = tuple[str, tuple[str, Object], str]
"""Direction, whom it isolates, what it allows them."""
CONFLICTS: list[list[Allowance]] = [
    [("egress", SOURCE, "nothing"), ("ingress", DESTINATION, "everything")],
    [("egress", SOURCE, "everything"), ("ingress", DESTINATION, "nothing")],
    [("egress", SOURCE, "nothing"), ("egress", SOURCE, "everything")],
    [("ingress", DESTINATION, "nothing"), ("ingress", DESTINATION, "everything")],
    *(
        [(direction, SOURCE, one), (direction, SOURCE, other)]
        for direction in reversed(DIRECTIONS)
        for one, other in (
            ("nothing", "all pods"),
            ("nothing", "all addresses"),
            ("no address", "all pods"),
            ("no pod", "all addresses"),
        )
    ),
    *([(direction, SOURCE, one)] for direction in reversed(DIRECTIONS) for one in ("no address", "no pod")),
]


def conflicts() -> Iterator[Case]:
    """Policies of which one allows what the other does not. Beside those of egress is one that allows DNS."""
    for allowances in CONFLICTS:
        policies = [
            _allowing(f"{number}-{direction}", direction, target, ALLOWED[what])
            for number, (direction, target, what) in enumerate(allowances)
        ]
        if any(direction == "egress" for direction, *_ in allowances):
            policies.append(policy("dns-x", namespace="x", selector=SOURCE[1], policyTypes=["Egress"], egress=[DNS]))
        name = ", ".join(f"{direction} of {namespace}: {what}" for direction, (namespace, _), what in allowances)
        yield Case(name, [Step(policies)])


def _allowing(name: str, direction: str, target: tuple[str, Object], peers: list[Peers] | None) -> Object:
    namespace, selector = target
    rules = [{}] if peers is None else [{DIRECTIONS[direction]: of_rule} for of_rule in peers]
    spec = {"policyTypes": [direction.capitalize()], direction: rules}
    return policy(f"{name}-{namespace}", namespace=namespace, selector=selector, **spec)


DNS_BY_UDP = {"protocol": "UDP", "port": 53}
WITH_DNS = [
    Case("denied but for DNS", [Step([in_x("deny", policyTypes=BOTH, egress=[DNS])])]),
    Case(
        "a pod that has other labels alone is denied",
        [
            Step([in_x("deny", policyTypes=["Ingress"], selector={"matchLabels": {"target": "isolated"}})]),
            Step([relabelled(pod_object("x/a"), target="isolated")]),
        ],
    ),
    Case("ingress and egress together, with DNS", [Step([both_ways({"port": 80}, DNS_BY_UDP)])]),
    Case(
        "what the server allows and the client does not, with DNS",
        [Step([in_x("out", TO_Y_A), in_x("dns", egress(ports=[DNS_BY_UDP], selector=OF_A)), *FROM_X_A])],
    ),
]
"""Those of its thirteen cases after Kubernetes' own that are not the same as these."""

CYCLONUS: Mapping[str, list[Case]] = {
    "targets": TARGETS,
    "rules": [*of_rules()],
    "peers": [*of_peers()],
    "ports": [*of_ports()],
    "examples": EXAMPLES,
    "actions": ACTIONS,
    "conflicts": [*conflicts()],
    "namespaces": NAMESPACES_BY_DEFAULT_LABEL,
    "e2e": WITH_DNS,
}
"""By the group of its generator, which is the row."""
