"""What kroute has to say is an Event that kubectl shows; of a wrong annotation the API server can say it at once."""

from functools import partial

from tests.cluster.agents import events
from tests.cluster.installation import upgrade
from tests.cluster.machines import Cluster, ClusterError
from tests.cluster.web import Web, service


def test_a_wrong_annotation_is_an_event_of_its_service(cluster: Cluster) -> None:
    cluster.apply(service("misspelt", annotations={"kroute.io/scheduler": "fastest"}))
    try:

        def seen() -> str:
            return cluster.kubectl("get", "events", "--field-selector", "involvedObject.name=misspelt")

        cluster.wait_until("there is an Event", lambda: "fastest" in seen())
        assert "Warning" in seen()
        assert "fastest" in cluster.kubectl("describe", "service", "misspelt")
    finally:
        cluster.kubectl("delete", "service", "misspelt")


def test_a_start_is_an_event_of_its_node(cluster: Cluster) -> None:
    for node in cluster.nodes:
        selected = ("involvedObject.kind=Node", f"involvedObject.name={node}", "reason=Started")
        cluster.wait_until(f"there is an Event of {node}", partial(events, cluster, *selected))
        assert "kroute.io/kroute" in cluster.kubectl("describe", "node", node)


def test_with_the_charts_policy_the_api_server_refuses_a_wrong_annotation_in_one_line(
    cluster: Cluster, web: Web
) -> None:
    def annotate() -> str:
        try:
            cluster.kubectl("annotate", "service", "web", "kroute.io/schedular=rr", "--dry-run=server")
        except ClusterError as error:
            return str(error)
        return ""

    assert annotate() == ""
    upgrade(cluster, "--set", "admission=true")
    try:
        cluster.wait_until("the policy is in force", lambda: annotate() != "")
        [line] = annotate().splitlines()
        assert "annotation kroute.io/schedular is not known to kroute. Known: kroute.io/scheduler, " in line
        cluster.kubectl("annotate", "service", "web", "kroute.io/scheduler=rr", "--dry-run=server")
    finally:
        upgrade(cluster, "--set", "admission=false")
    cluster.wait_until("the policy is gone", lambda: annotate() == "")
