"""`kroute check` on a node of the lab, with an API server that forbids a verb, and with another proxy on the node."""

from pathlib import Path

import pytest

from tests.lab.answers import ask_json
from tests.lab.api_server import ApiServer
from tests.lab.objects import node as node_object
from tests.lab.world import World

KEY = "10.254.0.99:80"


def said(report: dict, level: str) -> list[tuple[str, str]]:
    return [(it["check"], it["message"]) for it in report["items"] if it["level"] == level]


async def test_a_missing_verb_is_named_and_all_else_is_right(world: World, tmp_path: Path) -> None:
    node1 = world.cluster.node("node1")
    server = ApiServer(node1, tmp_path, [node_object(node1)])
    server.start()
    try:
        argv = ("check", "--kubeconfig", str(server.kubeconfig), "--node-name", "node1")
        code, report = await ask_json(node1, *argv)
        assert (code, said(report, "FAIL")) == (0, [])
        server.forbid(("watch", "endpointslices"), ("create", "events"))
        code, report = await ask_json(node1, *argv)
        assert code == 1
        assert said(report, "FAIL") == [
            ("rbac", "kroute may not watch endpointslices"),
            ("rbac", "kroute may not create events"),
        ]
    finally:
        server.stop()
    code, report = await ask_json(node1, *argv)
    assert code == 1
    assert {check for check, _ in said(report, "FAIL")} == {"api"}
    assert any("whether there is a Node node1 is not known" in message for _, message in said(report, "WARNING"))


@pytest.mark.legacy
async def test_another_proxys_traces_are_warnings(world: World, tmp_path: Path) -> None:
    node2 = world.cluster.node("node2")
    argv = ("check", "--manifests", str(tmp_path), "--node-name", "node2", "--node-ip", node2.ip)
    _, before = await ask_json(node2, *argv)
    assert said(before, "WARNING") == []
    node2.run("ip", "link", "add", "kube-ipvs0", "type", "dummy")
    node2.run("ipset", "create", "KUBE-CLUSTER-IP", "hash:ip,port")
    node2.run("iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES")
    node2.run("ipvsadm", "-A", "-t", KEY, "-s", "rr")
    try:
        _, after = await ask_json(node2, *argv)
    finally:
        node2.run("ipvsadm", "-D", "-t", KEY)
        node2.run("iptables-legacy", "-t", "nat", "-X", "KUBE-SERVICES")
        node2.run("ipset", "destroy", "KUBE-CLUSTER-IP")
        node2.run("ip", "link", "del", "kube-ipvs0")
    [(_, proxy), (_, foreign)] = said(after, "WARNING")
    assert proxy == "kube-proxy is or was at work here: IPv4 chain KUBE-SERVICES, link kube-ipvs0, set KUBE-CLUSTER-IP"
    assert foreign.startswith("1 virtual servers are not kroute's own (one is on 10.254.0.99 port 80)")
    assert said(after, "FAIL") == said(before, "FAIL")
