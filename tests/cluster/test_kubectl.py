"""kubectl reaches pods through the nodes' kubelets, with kroute beside them."""

import subprocess

from tests.cluster.machines import Cluster
from tests.cluster.web import Web


def test_exec_and_logs(cluster: Cluster, web: Web) -> None:
    for name in sorted(web.names()):
        assert cluster.kubectl("exec", name, "--", "hostname").strip() == name
        assert "HTTP" in cluster.kubectl("logs", name)


def test_port_forward_reaches_a_pod(cluster: Cluster, web: Web) -> None:
    with cluster.wire.inside():
        command = ["kubectl", "port-forward", "service/web", ":80"]
        forwarding = subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
    with forwarding:
        assert forwarding.stdout is not None
        try:
            port = forwarding.stdout.readline().split(" -> ")[0].rpartition(":")[2]
            assert cluster.run("curl", "-sS", "--max-time", "60", f"http://127.0.0.1:{port}/hostname") in web.names()
        finally:
            forwarding.kill()


def test_commands_run_in_an_agents_container(cluster: Cluster, web: Web) -> None:
    assert "kroute" in cluster.kubectl("--namespace", "kube-system", "exec", "ds/kroute", "--", "kroute", "--version")
    assert cluster.run("kubectl", "kroute", "explain", f"{web.addresses[0]}:80")
