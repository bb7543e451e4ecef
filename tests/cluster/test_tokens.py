"""The tokens by which kroute is known to the API server expire, and are refused: no call is lost, no object written."""

import base64
import json
import time

import pytest

from tests.cluster import footprint
from tests.cluster.agents import PROCESS, SYSTEM, agents, are_ready, containers, said, written
from tests.cluster.installation import CHART, rolls_out
from tests.cluster.machines import Cluster
from tests.cluster.streams import open_streams
from tests.cluster.web import Web

SHORTEST = 600
"""Seconds that a token lasts at least: the API server makes no shorter ones. The kubelet renews it after 80 %."""
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


@pytest.mark.thorough
def test_a_token_of_ten_minutes_is_renewed_without_a_break(cluster: Cluster, web: Web) -> None:
    template = json.loads(cluster.kubectl(*SYSTEM, "get", "daemonset", "kroute", "-o", "json"))["spec"]["template"]
    [place] = [at for at, it in enumerate(template["spec"]["volumes"]) if it["name"] == "account"]
    path = f"/spec/template/spec/volumes/{place}/projected/sources/0/serviceAccountToken/expirationSeconds"
    patch = json.dumps([{"op": "replace", "path": path, "value": SHORTEST}])
    cluster.kubectl(*SYSTEM, "patch", "daemonset", "kroute", "--type", "json", "--patch", patch)
    rolls_out(cluster)
    first, before = expiries(cluster), containers(cluster)
    cluster.wait_until("the first tokens have expired", lambda: time.time() > max(first.values()) + 60, 2 * SHORTEST)
    assert all(expiry > time.time() for expiry in expiries(cluster).values())
    old = web.names()
    with web.under_load():
        cluster.kubectl("rollout", "restart", "deployment/web")
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
        cluster.wait_until("the old pods are gone", lambda: not old & web.names(also_ending=True))
    assert [line for line in said(cluster) if "Unauthorized" in line.get("error", "")] == []
    assert containers(cluster) == before
    cluster.kubectl(*SYSTEM, "rollout", "undo", "daemonset/kroute")
    rolls_out(cluster)


def expiries(cluster: Cluster) -> dict[str, int]:
    """When each agent's token expires, in seconds since 1970."""
    tokens = {
        node: cluster.kubectl(*SYSTEM, "exec", agent["pod"], "--", "cat", TOKEN)
        for node, agent in agents(cluster).items()
    }
    bodies = {node: token.split(".")[1] for node, token in tokens.items()}
    return {
        node: json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
        for node, body in bodies.items()
    }


@pytest.mark.usefixtures("kept")
def test_agents_whose_account_was_deleted_serve_on_and_say_that_they_are_refused(cluster: Cluster, web: Web) -> None:
    """A token of a deleted account stays refused when the account is made again: the pods are to be made again, too."""
    kernels = footprint.at_rest(cluster)
    with open_streams(cluster), web.under_load():
        cluster.kubectl(*SYSTEM, "delete", "serviceaccount", "kroute")
        for node in cluster.nodes.values():
            cluster.on(node, f"pkill -KILL -f '{PROCESS}'")  # it has to ask the API server anew

        def are_refused() -> bool:
            texts = [cluster.run("sh", "-c", f"kubectl kroute status --node {name} || true") for name in cluster.nodes]
            return all("the API server refuses kroute's token" in text for text in texts)

        try:
            cluster.wait_until("each says that it is refused", are_refused)
        finally:
            cluster.run("helm", "upgrade", *CHART, "--reuse-values")
        cluster.kubectl(*SYSTEM, "rollout", "restart", "daemonset/kroute")
        rolls_out(cluster)
        cluster.wait_until("all serve", lambda: are_ready(cluster))
    assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels
