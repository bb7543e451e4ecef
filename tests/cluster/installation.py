"""kroute on the cluster, by the commands of the README."""

from tests.cluster.machines import Cluster, ClusterError

IMAGE = "localhost/kroute"
CHART = ("kroute", "deploy/helm/kroute", "--namespace", "kube-system")


def install(cluster: Cluster, *more: str) -> None:
    """Install kroute with the values that `kubectl kroute values` finds out, and wait until it serves."""
    begin(cluster, *more)
    rolls_out(cluster)


def begin(cluster: Cluster, *more: str) -> None:
    """Install kroute. Where another proxy is at work, it waits."""
    cluster.run("kubectl", "kroute", "check")
    values = cluster.directory / "values.yaml"
    values.write_text(cluster.run("kubectl", "kroute", "values"))
    own = ("--values", str(values), "--set", f"image.repository={IMAGE}")
    cluster.run("helm", "install", *CHART, *own, *more)


def upgrade(cluster: Cluster, *changes: str) -> None:
    """Change values of the installation, and wait until all nodes have them."""
    cluster.run("helm", "upgrade", *CHART, "--reuse-values", *changes)
    rolls_out(cluster)


def rolls_out(cluster: Cluster) -> None:
    cluster.kubectl("--namespace", "kube-system", "rollout", "status", "daemonset/kroute", "--timeout=10m")


def uninstall(cluster: Cluster) -> None:
    """Remove kroute from the nodes and the cluster, as docs/uninstall.md says."""
    cluster.run("helm", "upgrade", *CHART, "--reuse-values", "--set", "mode=uninstall")
    cluster.kubectl("--namespace", "kube-system", "rollout", "status", "daemonset/kroute-uninstall", "--timeout=10m")
    said = ("--selector", "app.kubernetes.io/name=kroute-uninstall", "--prefix", "--tail", "1")
    logs = cluster.kubectl("--namespace", "kube-system", "logs", *said)
    if logs.count("is clean") != len(cluster.nodes):
        raise ClusterError(f"not all nodes are clean: {logs}")
    cluster.run("helm", "uninstall", "kroute", "--namespace", "kube-system", "--wait")
