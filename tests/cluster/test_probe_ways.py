"""The kubelet's probes of every kind succeed by every way while kroute restarts; one that fails restarts its container.

The kubelet's metric `prober_probe_total` counts them, so that no failure hides between two looks.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.agents import PROCESS, are_ready, containers
from tests.cluster.installation import upgrade
from tests.cluster.machines import Cluster, Host
from tests.cluster.web import AGNHOST, NODE_PORT, Object, Web, pod, service

SHARED_NODE_PORT = 30082
"""The port of a Service on each node, and a host port."""


class Way(NamedTuple):
    """How the kubelet gets to a pod: the first of the ports of its containers, fields of its spec, its host ports."""

    port: int
    spec: Object
    host_ports: dict[str, int]


WAYS = {
    "pod-network": Way(80, {}, {}),
    "host-network": Way(18090, {"hostNetwork": True}, {}),
    "host-port": Way(8080, {}, {"http": 80, "tcp": SHARED_NODE_PORT}),
}
"""The pods. Port 80 is that of the Services, too."""
FAILURES = {
    "http": "rm /tmp/ready",
    "tcp": "killall httpd",
    "exec": "rm /tmp/ready",
    "grpc": "curl -sS http://127.0.0.1:{}/make-not-serving",
}
"""What lets the probe of each kind fail in a container, until it is restarted."""
COUNTED = re.compile(
    r'(?m)^prober_probe_total\{container="([^"]+)",.*pod="([^"]+)",.*probe_type="(\w+)",result="(\w+)"\} (\d+)$'
)
GOING_ON = {("Readiness", "successful"), ("Liveness", "successful")}
Counts = Counter[tuple[str, ...]]


def asked(kind: str, port: int) -> Object:
    """What a probe of this kind asks a container that listens on this port."""
    of_kinds: dict[str, Object] = {
        "http": {"httpGet": {"path": "/ready", "port": port}},
        "tcp": {"tcpSocket": {"port": port}},
        "exec": {"exec": {"command": ["test", "-e", "/tmp/ready"]}},
        "grpc": {"grpc": {"port": port}},
    }
    return of_kinds[kind]


def container(name: str, command: list[str], ready: Object, live: Object, **more: object) -> Object:
    """A container with all three probes, each of which fails at its first failure."""
    probes = {"startupProbe": probe(live, 10000), "readinessProbe": probe(ready), "livenessProbe": probe(live)}
    return {"name": name, "image": AGNHOST, "command": command, **probes, **more}


def probe(what: Object, failures: int = 1) -> Object:
    """A probe that a busy machine has time for, and that only a lost packet lets fail."""
    return {**what, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": failures}


def answering(way: str) -> list[Object]:
    """The containers of a pod, one for each kind of probe, at consecutive ports."""
    first, _, host_ports = WAYS[way]
    made = []
    for port, kind in enumerate(FAILURES, first):
        command = ["sh", "-c", f"touch /tmp/ready; httpd -h /tmp -p {port}; exec sleep infinity"]
        if kind == "grpc":
            command = ["/agnhost", "grpc-health-checking", f"--port={port}", f"--http-port={port + 1}"]
        ports = [{"containerPort": port, "hostPort": host_ports[kind]}] if kind in host_ports else []
        what = asked(kind, port)
        made.append(container(kind, command, what, what, ports=ports))
    return made


def through_services(web: Web, node: Host) -> list[Object]:
    """Containers whose probes have a `host`, one of each family: ClusterIPs, and the node's own with a node port."""
    made = []
    for name, addresses, port in (("cluster-ip", web.addresses, 80), ("node-port", node.place.addresses, NODE_PORT)):
        ready, live = ({"httpGet": {"host": it, "path": "/healthz", "port": port}} for it in addresses)
        made.append(container(name, ["sleep", "infinity"], ready, live))
    return made


@pytest.fixture(scope="module")
def probed(cluster: Cluster, web: Web) -> Iterator[list[str]]:
    """The names of the pods, all of them ready, half of them on each node."""
    nodes = list(cluster.nodes.values())
    specs = {way: {**WAYS[way].spec, "containers": answering(way)} for way in WAYS}
    specs["services"] = {"containers": through_services(web, nodes[1])}
    pods = [
        pod(name, nodes[number % 2].name, {"terminationGracePeriodSeconds": 1, **spec})
        for number, (name, spec) in enumerate(specs.items())
    ]
    with cluster.having(service("shared", SHARED_NODE_PORT, selector={"app": "web"}), *pods):
        cluster.kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in specs), "--timeout=10m")
        yield list(specs)


def counts(cluster: Cluster, probed: list[str]) -> Counts:
    """How many probes the kubelets have had so far: by container, pod, type and result."""
    paths = [f"/api/v1/nodes/{node}/proxy/metrics/probes" for node in cluster.nodes]
    text = "".join(cluster.kubectl("get", "--raw", path) for path in paths)
    return Counter({tuple(labels): int(count) for *labels, count in COUNTED.findall(text) if labels[1] in probed})


def restarts(cluster: Cluster, name: str) -> dict[str, int]:
    status = '{range .status.containerStatuses[*]}{.name} {.restartCount}{"\\n"}{end}'
    lines = cluster.kubectl("get", "pod", name, "-o", f"jsonpath={status}").splitlines()
    return {kind: int(count) for kind, count in map(str.split, lines)}


@pytest.mark.thorough
def test_no_probe_fails_while_kroute_is_killed_and_gets_another_configuration(
    cluster: Cluster, probed: list[str]
) -> None:
    probes = 2 * (len(WAYS) * len(FAILURES) + 2)

    def successes() -> Counts:
        """Those of the probes that go on."""
        return Counter({key: it for key, it in counts(cluster, probed).items() if key[2:] in GOING_ON})

    def go_on() -> None:
        since = successes()

        def have_succeeded() -> bool:
            return len([it for it in (successes() - since).values() if it > 1]) == probes

        cluster.wait_until("each probe has succeeded twice more", have_succeeded)

    cluster.wait_until("each probe has succeeded", lambda: len(successes()) == probes)
    first = counts(cluster, probed)
    go_on()
    before = containers(cluster)
    for node in cluster.nodes.values():
        cluster.on(node, f"pkill -KILL -f '{PROCESS}'")

    def are_others() -> bool:
        return are_ready(cluster) and not {*containers(cluster).values()} & {*before.values()}

    cluster.wait_until("kroute serves again", are_others)
    go_on()
    for scheduler in ("lc", "auto"):
        upgrade(cluster, "--set", f"settings.scheduler={scheduler}")
        go_on()
    assert {key: count for key, count in (counts(cluster, probed) - first).items() if key[3] != "successful"} == {}
    assert not any(count for name in probed for count in restarts(cluster, name).values())


@pytest.mark.drawn(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_liveness_probe_that_fails_restarts_its_container(way: str, cluster: Cluster, probed: list[str]) -> None:
    assert way in probed
    before, of_control = restarts(cluster, way), WAYS[way].port + len(FAILURES)
    for kind, command in FAILURES.items():
        text = command.format(of_control)
        cluster.kubectl("exec", way, "--container", kind, "--", "sh", "-c", text)
    cluster.wait_until(
        "each container was started again",
        lambda: all(count > before[kind] for kind, count in restarts(cluster, way).items()),
    )
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{way}", "--timeout=10m")
