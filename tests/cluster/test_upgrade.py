"""From the previous release, which kustomize has installed, to the chart, as docs/upgrade.md says: nothing is lost."""

import json

import pytest

from kroute import __version__
from tests.cluster import footprint, previous
from tests.cluster.agents import SELECTOR, SYSTEM, agents, written
from tests.cluster.installation import CHART, IMAGE, rolls_out, uninstall
from tests.cluster.machines import Cluster
from tests.cluster.streams import open_streams
from tests.cluster.web import Object, Web

RULES = {"rules.written", "set_entry.added", "set_entry.removed"}
"""What each release has of its own: docs/upgrade.md."""


@pytest.mark.thorough
@pytest.mark.usefixtures("kept")
def test_helm_takes_over_the_previous_release_and_no_connection_is_lost(cluster: Cluster, web: Web) -> None:
    if said := previous.missing():
        pytest.skip(said)
    kernels, pods = footprint.at_rest(cluster), pod_of(cluster)
    uninstall(cluster)
    previous.install(cluster)
    assert versions(cluster) == {previous.VERSION}
    with open_streams(cluster), web.under_load():
        values = ("--values", str(cluster.directory / "values.yaml"), "--set", f"image.repository={IMAGE}")
        cluster.run("helm", "install", *CHART, "--take-ownership", *values)
        rolls_out(cluster)
        cluster.run("kubectl", "kroute", "status")
    assert versions(cluster) == {__version__}
    assert set(written(cluster)) <= RULES
    cluster.kubectl(*SYSTEM, "delete", "configmap", *config_maps_of_previous(cluster))
    assert pod_of(cluster) == pods
    assert footprint.in_order(footprint.of_nodes(cluster)) == footprint.in_order(kernels)


def versions(cluster: Cluster) -> set[str]:
    """The tags of the images that kroute's containers have."""
    return {agent["image"].rpartition(":")[2] for agent in agents(cluster).values()}


def pod_of(cluster: Cluster) -> Object:
    """What the DaemonSet says of its pods."""
    return dict(
        json.loads(cluster.kubectl(*SYSTEM, "get", "daemonset", "kroute", "-o", "json"))["spec"]["template"]["spec"]
    )


def config_maps_of_previous(cluster: Cluster) -> list[str]:
    """The ConfigMaps that kustomize has made, by their names: each ends in a hash."""
    names = cluster.kubectl("get", "configmaps", *SELECTOR, "-o", "jsonpath={.items[*].metadata.name}").split()
    return [name for name in names if name.startswith("kroute-")]
