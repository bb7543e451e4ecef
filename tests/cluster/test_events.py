"""What kroute has to say of a Service or a node is an Event that `kubectl get events` and `describe` show."""

from functools import partial

from tests.cluster.agents import events
from tests.cluster.machines import Cluster
from tests.cluster.web import service


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
