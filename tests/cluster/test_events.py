"""What kroute has to say of a Service is an Event that `kubectl get events` shows."""

from tests.cluster.machines import Cluster
from tests.cluster.web import service


def test_a_wrong_annotation_is_an_event_of_its_service(cluster: Cluster) -> None:
    cluster.apply(service("misspelt", annotations={"kroute.io/scheduler": "fastest"}))
    try:

        def seen() -> str:
            return cluster.kubectl("get", "events", "--field-selector", "involvedObject.name=misspelt")

        cluster.wait_until("there is an Event", lambda: "fastest" in seen())
        assert "Warning" in seen()
    finally:
        cluster.kubectl("delete", "service", "misspelt")
