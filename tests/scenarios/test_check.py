"""`kroute check` on a node of the lab, with an API server that forbids a verb, and with another proxy on the node."""

import json
import subprocess
import sys
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


@pytest.mark.legacy
@pytest.mark.nftables
def test_a_legacy_table_is_a_warning_where_it_may_not_be_read(world: World, tmp_path: Path) -> None:
    node2 = world.cluster.node("node2")
    node2.run("iptables-legacy", "-t", "filter", "-S")  # from now on it is in use
    argv = ("check", "--firewall", "nftables", "--manifests", tmp_path, "--node-name", "node2", "--node-ip", node2.ip)
    without = ("setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw")
    with node2.namespace.inside():
        done = subprocess.run(
            [*without, sys.executable, "-m", "kroute", *argv, "--state-dir", tmp_path, "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
        )
    report = json.loads(done.stdout)
    assert ("firewall", "table filter of IPv4 legacy is in use, and cannot be read without CAP_NET_RAW") in said(
        report, "WARNING"
    )
    assert not [message for _, message in said(report, "FAIL") if "iptables" in message]
