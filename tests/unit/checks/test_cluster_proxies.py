"""Which other proxies the cluster means for a node: by the rules of the DaemonSet controller, and by the Pods there."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kroute.checks.cluster_proxies import proxies_of_node
from kroute.watchers.kubernetes.errors import ApiError

LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node1", "cores": "8"}
CONTAINER = {"image": "registry.k8s.io/kube-proxy:v1.36.2"}
EVERYTHING = [{"operator": "Exists"}]


class Answers:
    """An API server with these objects; a path that it does not have is answered by 404."""

    def __init__(self, **items: list[dict[str, Any]]) -> None:
        self.items = items
        self.maps: dict[str, dict[str, str]] = {}
        self.queries: list[tuple[str, Mapping[str, str]]] = []

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        self.queries.append((path, params))
        kind, _, name = path.rpartition("/")
        if kind.endswith("/configmaps"):
            if name not in self.maps:
                raise ApiError(404, "NotFound", f"configmaps {name!r} not found")
            return msgspec.json.encode({"data": self.maps[name]})
        return msgspec.json.encode({"items": self.items.get(name)})


def node(*taints: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "node1", "labels": LABELS}, "spec": {"taints": list(taints)}}


def daemon_set(container: dict[str, Any] = CONTAINER, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "proxies"}, "spec": {"template": {"spec": {"containers": [container], **spec}}}}


def pod(container: dict[str, Any] = CONTAINER, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "proxy-x", **metadata},
        "spec": {"containers": [container]},
        "status": {"phase": phase},
    }


async def asked(**items: list[dict[str, Any]]) -> dict[str, str]:
    return await proxies_of_node(Answers(nodes=[node()], **items), "node1")


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": wanted}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "is_meant"),
    [
        pytest.param({}, True, id="no condition"),
        pytest.param({"nodeSelector": {"kubernetes.io/os": "linux"}}, True, id="selector"),
        pytest.param({"nodeSelector": {"kubernetes.io/os": "windows"}}, False, id="another selector"),
        pytest.param({"nodeSelector": {"non-existing": "true"}}, False, id="a selector that switches it off"),
        pytest.param(required(expression("cores", "In", "4", "8")), True, id="In"),
        pytest.param(required(expression("cores", "NotIn", "8")), False, id="NotIn"),
        pytest.param(required(expression("gone", "NotIn", "8")), True, id="NotIn of a label that is not there"),
        pytest.param(required(expression("cores", "Exists")), True, id="Exists"),
        pytest.param(required(expression("cores", "DoesNotExist")), False, id="DoesNotExist"),
        pytest.param(required(expression("cores", "Gt", "7")), True, id="Gt"),
        pytest.param(required(expression("cores", "Lt", "7")), False, id="Lt"),
        pytest.param(required(expression("cores", "Gt", "many")), False, id="Gt of no number"),
        pytest.param(required(expression("cores", "Like", "8")), False, id="an operator that does not exist"),
        pytest.param(required({}), False, id="an empty term"),
        pytest.param(required(), False, id="no term"),
        pytest.param(required({}, expression("cores", "Exists")), True, id="one of two terms"),
        pytest.param(
            required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node2"]}]}),
            False,
            id="field",
        ),
    ],
)
async def test_a_daemon_set_wants_its_pod_where_its_conditions_hold(spec: dict[str, Any], is_meant: bool) -> None:
    assert ("kube-proxy" in (await asked(daemonsets=[daemon_set(**spec)]))) is is_meant


@pytest.mark.parametrize(
    ("taint", "tolerations", "is_meant"),
    [
        ({"key": "a", "effect": "NoSchedule"}, [], False),
        ({"key": "a", "effect": "NoExecute"}, EVERYTHING, True),
        ({"key": "a", "effect": "PreferNoSchedule"}, [], True),
        ({"key": "a", "value": "b", "effect": "NoSchedule"}, [{"key": "a", "value": "b"}], True),
        ({"key": "a", "value": "c", "effect": "NoSchedule"}, [{"key": "a", "value": "b"}], False),
        ({"key": "a", "effect": "NoSchedule"}, [{"key": "a", "operator": "Exists", "effect": "NoExecute"}], False),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, [], True),
    ],
)
async def test_a_daemon_set_wants_no_pod_on_a_node_whose_taints_it_does_not_tolerate(
    taint: dict[str, str], tolerations: list[dict[str, str]], is_meant: bool
) -> None:
    answers = Answers(nodes=[node(taint)], daemonsets=[daemon_set(tolerations=tolerations)])
    assert ("kube-proxy" in (await proxies_of_node(answers, "node1"))) is is_meant


@pytest.mark.parametrize(
    ("container", "proxy"),
    [
        ({"image": "602401143452.example/eks/kube-proxy:v1.36.2-minimal"}, "kube-proxy"),
        (
            {"image": "rancher/hardened-kubernetes@sha256:12", "command": ["/usr/bin/kube-proxy", "--config=x"]},
            "kube-proxy",
        ),
        ({"image": "registry:5000/cloudnativelabs/kube-router"}, "kube-router"),
        ({"name": "calico-node", "image": "calico/node:v3.30"}, None),
        ({"image": "kube-proxy-exporter:v1"}, None),
        ({"image": ""}, None),
    ],
)
async def test_a_proxy_is_known_by_its_image_or_its_program(container: dict[str, Any], proxy: str | None) -> None:
    assert list(await asked(pods=[pod(container)])) == ([proxy] if proxy else [])


@pytest.mark.parametrize(
    ("changed", "is_meant"),
    [
        ({}, True),
        ({"phase": "Failed"}, False),
        ({"phase": "Succeeded"}, False),
        ({"deletionTimestamp": "2026-11-23T20:00:00Z"}, False),
        ({"annotations": {"kubernetes.io/config.mirror": "1"}}, True),
    ],
)
async def test_a_pod_on_the_node_is_meant_until_it_is_deleted(changed: dict[str, Any], is_meant: bool) -> None:
    assert bool(await asked(pods=[pod(**changed)])) is is_meant


async def test_a_daemon_set_that_is_being_deleted_wants_nothing() -> None:
    going = daemon_set()
    going["metadata"]["deletionTimestamp"] = "2026-11-23T20:00:00Z"
    assert (await asked(daemonsets=[going])) == {}


async def test_a_kube_router_that_only_routes_is_idle() -> None:
    router = {"image": "kube-router:v2.11", "args": ["--run-router=true", "--run-service-proxy=false"]}
    assert await asked(daemonsets=[daemon_set(router)]) == {}


@pytest.mark.parametrize(
    ("program", "name", "data", "replaces"),
    [
        ("cilium-agent", "cilium-config", {"kube-proxy-replacement": "true"}, True),
        ("cilium-agent", "cilium-config", {"kube-proxy-replacement": "strict"}, True),
        ("cilium-agent", "cilium-config", {"kube-proxy-replacement": "false"}, False),
        ("cilium-agent", "another", {}, False),
        ("antrea-agent", "antrea-config", {"antrea-agent.conf": "antreaProxy:\n  proxyAll: true\n"}, True),
        ("antrea-agent", "antrea-config", {"antrea-agent.conf": "antreaProxy:\n  #proxyAll: true\n"}, False),
    ],
)
async def test_a_network_plugin_counts_if_its_configuration_replaces_kube_proxy(
    program: str, name: str, data: dict[str, str], replaces: bool
) -> None:
    answers = Answers(nodes=[node()], pods=[pod({"name": program, "image": "agent:v1"})])
    answers.maps[name] = data
    assert bool(await proxies_of_node(answers, "node1")) is replaces


async def test_only_pods_of_this_node_are_asked_for() -> None:
    answers = Answers(nodes=[node()])
    await proxies_of_node(answers, "node1")
    assert answers.queries[0] == (
        "/api/v1/namespaces/kube-system/pods",
        {"fieldSelector": "spec.nodeName=node1", "limit": "500"},
    )


@pytest.mark.parametrize("body", [b"", b"[]", b'{"items": [1]}', b'{"items":' + b"[" * 5000, b"\xff"])
async def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    class Nonsense:
        async def get(self, _path: str, _params: Mapping[str, str]) -> bytes:
            return body

    with pytest.raises(ApiError):
        await proxies_of_node(Nonsense(), "node1")
