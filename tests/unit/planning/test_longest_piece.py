"""Whatever a Service's annotations say, it is planned in short pieces, between which other tasks run.

Time of the processor is measured, in units of what a plain Service with as many virtual servers takes as a whole: its
plan is made in some twenty pieces. Real limits and sizes: a Service may ask for so much with the default settings.
"""

import gc
import time
from collections.abc import Iterator
from itertools import count

import pytest

from kroute.agent.wiring import SLICE, WORK
from kroute.model.objects import WEIGHT, ZONE_LABEL, Applied, EndpointPort, KubernetesObject, Node, ObjectKey, Service
from kroute.planning.catalog import Catalog
from kroute.planning.features import ANNOTATIONS
from kroute.planning.weight_facts import PAUSE
from tests.builders import LISTED_WITH_PODS, NODE, NODE_IPV4, endpoint, endpoint_slice, facts, node, pod, port, service
from tests.builders import settings as settings_with
from tests.examples import is_quick

NODES = 1000
ZONES = 7
ADDRESS = "198.51.100.1"
WEIGHTS = ",".join(
    [f"zone/z{number}={number * 9173 % 65535 + 1}" for number in range(ZONES)]
    + [f"node/{'x' * 230}{number}={number * 7919 % 65535 + 1}" for number in range(100)]
    + [f"node/n{number}={number * 7919 % 65535 + 1}" for number in range(NODES - ZONES - 100)]
)
AT_ITS_LIMITS = {
    "kroute.io/scheduler": "sh",
    "kroute.io/scheduler-flags": "sh-fallback,sh-port," * 10_000,
    "kroute.io/persistence-timeout": "2678400",
    "kroute.io/persistence-netmask": "24,64",
    "kroute.io/hairpin": "on",
    "kroute.io/skip-load-balancer-ips": "on",
    "kroute.io/local": "on",
    "kroute.io/slow-start": "1h",
    "kroute.io/weights": WEIGHTS,
    "kroute.io/locality": "prefer-node, spill 97%",
    "kroute.io/ejection": "after 5m, hold 1h",
    "kroute.io/direct-return": "tunnel",
    "kroute.io/advertise-cluster-ip": "on",
    "kroute.io/advertise-external-ip": "on",
    "kroute.io/advertise-loadbalancer-ip": "on",
    "kroute.io/load-balancer-ips": "192.0.2.1," * 20_000,
    "kroute.io/share-load-balancer-ip": "x" * 200_000,
    "kroute.io/director-weight": "endpoints",
}
ATTEMPTS = 3
TOGETHER = [
    {"kroute.io/weights", "kroute.io/locality"},
    {"kroute.io/weights", "kroute.io/locality", "kroute.io/scheduler"},
    AT_ITS_LIMITS.keys() - {"kroute.io/scheduler"},
]
SIZES = {"as many of both": (50, 1000), "many ports": (2500, 20), "many endpoints": (5, 10_000)}
"""Ports and endpoints."""
NAMES_OF_SIZES = [*SIZES][: 1 if is_quick() else None]
"""`make unit` has the first size only."""


def named(number: int) -> str:
    return f"n{number}" if number else NODE


def a_node(number: int, *, ready: bool = True, **labels: str) -> Node:
    zone = {ZONE_LABEL: f"z{number % ZONES}"}
    address = f"192.168.{number // 250}.{number % 250 + 1}"
    return node(("InternalIP", address), name=named(number), labels=zone | labels, ready=ready)


class Cluster:
    """A catalog with a thousand Nodes, and the slices of a Service with so many ports and endpoints in each family.

    `whole` is the processor time, in seconds, in which the Service is planned as a whole if it has no annotations;
    `unit` is that time of the Service with the most virtual servers.
    """

    def __init__(self, ports: int, endpoints: int, unit: float = 0.0) -> None:
        self._ports = ports
        clock = count(0, PAUSE).__next__
        settings = settings_with(pod_weights=True, direct_return=True)
        self._catalog = Catalog(settings, facts(own=(NODE_IPV4, "fd00:123::250"), zone="z0"), clock)
        backend_ports = [EndpointPort(f"p{number}", number + 1) for number in range(ports)]
        self._catalog.take(Applied(a_node(number)) for number in range(NODES))
        for family, network in (("IPv4", "10.100.{0}.{1}"), ("IPv6", "fd00:1::{0:x}:{1:x}")):
            each = [
                endpoint(network.format(it // 250, it % 250 + 1), on=named(it * it % NODES), pod=f"p{it}")
                for it in range(endpoints)
            ]
            slices = [
                endpoint_slice(f"{family}-{it}", *each[it : it + 1000], ports=backend_ports, address_type=family)
                for it in range(0, endpoints, 1000)
            ]
            self._catalog.take(map(Applied, slices))
        self._catalog.take(LISTED_WITH_PODS)
        self.pieces()
        # Each of these is another plan, so that all of it is done.
        plain = [self.service({"kroute.io/persistence-timeout": f"{it}"}) for it in range(3)]
        self.whole = min(sum(self.pieces(it)) for it in plain)
        self.unit = unit or self.whole

    def service(self, annotations: dict[str, str]) -> Service:
        return service(
            "web",
            *("10.96.0.10", "fd00:10::1"),
            kind="LoadBalancer",
            ports=[port(it + 1, f"p{it}", node_port=20_000 + it) for it in range(self._ports)],
            external_ips=[ADDRESS],
            annotations=annotations,
        )

    def pieces(self, *changed: KubernetesObject) -> list[float]:
        """The processor time of each piece in which these changes are planned, in seconds."""
        self._catalog.take(map(Applied, changed))
        pieces = []
        while self._catalog.has_marked:
            began = time.process_time()
            self._catalog.plan_marked(SLICE, WORK)
            pieces.append(time.process_time() - began)
        return pieces

    def pieces_of_explaining(self) -> list[float]:
        """The processor time of each piece in which the Service is explained, in seconds."""
        pieces, steps = [], self._catalog.explaining(ObjectKey("default", "web"))
        is_over = False
        while not is_over:
            began = time.process_time()
            is_over = next(steps, None) is None
            pieces.append(time.process_time() - began)
        return pieces

    def assert_short(self, *changed: KubernetesObject) -> None:
        """None of the pieces takes as long as the unit. On a busy machine one of them may."""
        found = []
        for _ in range(ATTEMPTS):
            found.append([max(self.pieces(it), default=0.0) / self.unit for it in changed])
            if max(found[-1]) < 1:
                return
            self.pieces(self.service({}))
        pytest.fail(f"longest pieces, in units of {self.unit:.3f} s: {found}")


@pytest.fixture(scope="module")
def unit() -> Iterator[float]:
    """Without collections of garbage: the agent keeps them rare and short (GcTuning)."""
    gc.collect()
    gc.disable()
    yield Cluster(*SIZES["many ports"]).whole
    gc.enable()


@pytest.fixture(scope="module", params=NAMES_OF_SIZES)
def cluster(request: pytest.FixtureRequest, unit: float) -> Cluster:
    return Cluster(*SIZES[request.param], unit)


def test_every_annotation_is_here() -> None:
    assert AT_ITS_LIMITS.keys() == {row.name for row in ANNOTATIONS}


@pytest.mark.parametrize("names", [*({it} for it in AT_ITS_LIMITS), *TOGETHER], ids=lambda it: " ".join(sorted(it)))
def test_annotations(cluster: Cluster, names: set[str]) -> None:
    cluster.assert_short(cluster.service({name: AT_ITS_LIMITS[name] for name in names}))


def test_nodes_and_pods_that_change(cluster: Cluster) -> None:
    web = cluster.service({name: AT_ITS_LIMITS[name] for name in ("kroute.io/weights", "kroute.io/locality")})
    flips = [a_node(7, ready=False), a_node(8, **{WEIGHT: "65535"}), a_node(9, **{ZONE_LABEL: "z9"})]
    pods = [pod(f"p{it}", "x" if it % 3 else f"{it}") for it in range(0, 10_000, 7)]
    cluster.assert_short(web, *flips, a_node(7), a_node(8), a_node(9))
    cluster.pieces(*pods)
    cluster.assert_short(web, *flips)


def test_an_explanation(cluster: Cluster) -> None:
    cluster.pieces(cluster.service({name: AT_ITS_LIMITS[name] for name in ("kroute.io/weights", "kroute.io/locality")}))
    longest = (max(cluster.pieces_of_explaining()) / cluster.unit for _ in range(ATTEMPTS))
    assert any(length < 1 for length in longest)
