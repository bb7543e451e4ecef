"""The API server gets a certificate of another authority, and kroute follows without a restart.

The order is that of Kubernetes' page "Manual Rotation of CA Certificates": first all trust both authorities, then the
server has the other certificate, then nobody trusts the first authority any more.
"""

import json
from functools import partial

import pytest

from tests.cluster.agents import agents, containers
from tests.cluster.components import KUBERNETES
from tests.cluster.machines import Cluster, Host
from tests.cluster.web import Web

LATE = 600.0
"""Seconds. The kubelet writes an authority into pods at its next synchronization, some 90 s later."""


@pytest.mark.thorough
def test_another_authority_and_certificate_of_the_api_server_need_no_restart(cluster: Cluster, web: Web) -> None:
    before = containers(cluster)
    with web.under_load():
        cluster.credentials.make_authority("other")
        trust(cluster, "ca", "other")
        cluster.credentials.certify_server("other")
        for name in ("server.crt", "server.key"):
            cluster.put(cluster.control, f"{KUBERNETES}/{name}", cluster.credentials.file(name))
        restart(cluster, cluster.control, "kube-apiserver")
        trust(cluster, "other")
        old = web.names()
        cluster.kubectl("rollout", "restart", "deployment/web")
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
        cluster.wait_until("the old pods are gone", lambda: not old & web.names(also_ending=True))
    for node in cluster.nodes:
        assert web.is_served_at(web.addresses[0], node)
    assert containers(cluster) == before


def trust(cluster: Cluster, *authorities: str) -> None:
    """Let everybody trust these authorities, and no others: the test, the components, and all pods."""
    credentials = cluster.credentials
    credentials.trust(*authorities)
    cluster.kubeconfig.write_text(credentials.kubeconfig("admin"))
    cluster.put(cluster.control, f"{KUBERNETES}/authorities.crt", credentials.file("authorities.crt"))
    cluster.put(cluster.control, f"{KUBERNETES}/admin", credentials.kubeconfig("admin"))
    restart(cluster, cluster.control, "kube-controller-manager")
    restart(cluster, cluster.control, "kube-scheduler")
    for node in cluster.nodes.values():
        cluster.put(node, f"{KUBERNETES}/kubelet", credentials.kubeconfig(f"system:node:{node.name}"))
        restart(cluster, node, "kubelet")
    for name, agent in agents(cluster).items():
        known = partial(are_known, cluster, cluster.nodes[name], agent["uid"])
        cluster.wait_until(f"kroute's pod on {name} has the authorities {authorities}", known, LATE)


def are_known(cluster: Cluster, node: Host, uid: str) -> bool:
    """Whether a pod on a node has exactly the authorities that clients are to trust."""
    files = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected/*/ca.crt"
    return cluster.on(node, f"cat {files}").split() == cluster.credentials.file("authorities.crt").split()


def restart(cluster: Cluster, host: Host, component: str) -> None:
    """End a component, and wait until it has been started again."""
    find = f"pgrep -f '[/ ]{component}( |$)' | head -1"
    old = cluster.on(host, find)
    cluster.on(host, f"kill -KILL {old}")
    cluster.wait_until(f"{component} runs again", lambda: cluster.on(host, find) not in {"", old})
    cluster.wait_until("the API server is ready", lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok")
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    assert {node["metadata"]["name"] for node in nodes} == set(cluster.nodes)
