"""A pod's probes decide whether it is an endpoint, and kroute's virtual server follows: on all nodes, with packets."""

from collections.abc import Iterator

import pytest

from tests.cluster.footprint import real_servers
from tests.cluster.machines import Cluster, ClusterError
from tests.cluster.web import AGNHOST, Object, Web, service

KINDS = {
    "exec": ("touch /tmp/unready", "rm /tmp/unready"),
    "http": ("rm /tmp/ready", "touch /tmp/ready"),
}
"""The containers, by the kinds of their readiness probes: the commands after which the probe fails, and succeeds."""


def has(path: str, *, no: bool = False) -> Object:
    return {"exec": {"command": ["test", *(["!"] if no else []), "-e", path]}}


def probe(what: Object, failures: int = 1) -> Object:
    return {**what, "periodSeconds": 2, "timeoutSeconds": 10, "failureThreshold": failures}


def container(name: str, command: list[str], readiness: Object, **more: object) -> Object:
    return {"name": name, "image": AGNHOST, "command": command, "readinessProbe": probe(readiness), **more}


def probed(node: str) -> Object:
    """A pod that answers HTTP, with readiness probes of both kinds, and a startup probe."""
    http = ["sh", "-c", "touch /tmp/ready; exec /agnhost test-webserver --port=9091"]
    containers = [
        container(
            "exec",
            ["/agnhost", "netexec", "--http-port=8080"],
            has("/tmp/unready", no=True),
            startupProbe=probe(has("/tmp/started"), failures=10000),
        ),
        container("http", http, {"httpGet": {"path": "/tmp/ready", "port": 9091}}),
    ]
    metadata = {"name": "probed", "labels": {"app": "probed"}}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Probed:
    """The pod, and its Service."""

    def __init__(self, cluster: Cluster, web: Web) -> None:
        self._cluster = cluster
        self._web = web
        self._address = cluster.addresses("probed")[0]

    def run(self, kind: str, command: str) -> None:
        self._cluster.kubectl("exec", "probed", "--container", kind, "--", "sh", "-c", command)

    def is_served(self) -> None:
        """All nodes have it, and pods of all nodes reach it."""
        self._have_it(count=1)
        for node in self._cluster.nodes:
            assert self._web.answers_from_pod(node, f"http://{self._address}", 1) == {"probed"}

    def is_refused(self) -> None:
        """No node has it, and calls are refused."""
        self._have_it(count=0)
        for node in self._cluster.nodes:
            with pytest.raises(ClusterError, match="exit code 7"):
                self._cluster.kubectl("exec", f"client-{node}", "--", "curl", "-sS", f"http://{self._address}")

    def _have_it(self, count: int) -> None:
        self._cluster.wait_until(
            f"all nodes have {count} endpoints of it",
            lambda: all(
                len(real_servers(self._cluster, it, f"{self._address}:80")) == count for it in self._cluster.nodes
            ),
        )


@pytest.fixture(scope="module")
def its(cluster: Cluster, web: Web) -> Iterator[Probed]:
    with cluster.having(probed("node1"), service("probed", ipFamilyPolicy="SingleStack")):
        ready = '{.status.containerStatuses[?(@.name=="%s")].ready}'
        others = [f"--for=jsonpath={ready % kind}=true" for kind in KINDS if kind != "exec"]
        for condition in others:
            cluster.kubectl("wait", condition, "pod/probed", "--timeout=10m")
        yield Probed(cluster, web)


def test_a_pod_is_an_endpoint_once_its_startup_probe_succeeds(its: Probed) -> None:
    its.is_refused()
    its.run("exec", "touch /tmp/started")
    its.is_served()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_readiness_probe_that_fails_takes_the_endpoint_out_until_it_succeeds(kind: str, its: Probed) -> None:
    its.run("exec", "touch /tmp/started")
    its.is_served()
    fail, succeed = KINDS[kind]
    its.run(kind, fail)
    its.is_refused()
    its.run(kind, succeed)
    its.is_served()
