"""A pod that a kubelet has from a file, and the API server only as its mirror, is an endpoint like any other."""

import json
from functools import partial

from tests.cluster.machines import Cluster
from tests.cluster.web import Web, server

MANIFEST = "/etc/kubernetes/manifests/static.json"


def test_a_static_pod_is_served_through_a_restart_of_its_kubelet(cluster: Cluster, web: Web) -> None:
    node, mirror = cluster.nodes["node1"], "static-node1"
    metadata = {"name": "static", "namespace": "default", "labels": {"app": "web"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": server()}
    cluster.on(node, f"cat >{MANIFEST} <<'END'\n{json.dumps(pod)}\nEND")
    try:
        cluster.wait_until("its mirror is there", lambda: mirror in web.names())
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{mirror}", "--timeout=10m")
        for name in cluster.nodes:
            cluster.wait_until(f"{name} serves it", partial(web.is_served_at, web.addresses[0], name))
        begun = started(cluster, mirror)
        with web.under_load():
            cluster.on(node, "pkill -KILL -x kubelet; until pgrep -x kubelet; do sleep 0.2; done")
            cluster.wait_until("the kubelet has it still", lambda: started(cluster, mirror) == begun)
            cluster.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", f"pod/{mirror}", "--timeout=10m")
            cluster.wait_until("it is served still", lambda: web.is_served_at(web.addresses[0], "node2"))
    finally:
        cluster.on(node, f"rm {MANIFEST}")
        cluster.wait_until("its mirror is gone", lambda: mirror not in web.names(also_ending=True))


def started(cluster: Cluster, pod: str) -> str:
    """When the process of a pod was started, as its kubelet says by `exec`."""
    return cluster.kubectl("exec", pod, "--", "cut", "-d ", "-f22", "/proc/1/stat")
