"""S1, S2, S11, S12 and S13 once more with each kind of overlay network between the nodes."""

import pytest

from tests.scenarios.test_overlays import world
from tests.scenarios.test_s01_host_reaches_remote_pods import (
    test_s1_all_pods_answer_a_host_and_see_its_own_address,
    test_s1_the_local_route_of_each_vip_has_the_nodes_address_as_source,
    test_s2_the_api_server_is_reached_from_every_node,
)
from tests.scenarios.test_s11_masquerading import (
    test_a_pod_that_is_sent_to_itself_gets_an_answer,
    test_exempt_sources_are_not_masqueraded,
    test_only_calls_from_outside_the_cluster_networks_are_masqueraded,
    test_s11_masquerade_all_shows_the_node_for_every_connection,
    test_s12_a_pod_sees_the_pod_that_called,
)
from tests.scenarios.test_s13_external_traffic import (
    quick_errors,
    test_s13_cluster_any_node_serves_and_the_pod_sees_that_node,
    test_s13_local_follows_the_pod_to_the_node,
    test_s13_local_pods_and_processes_of_a_node_without_an_endpoint_are_served_by_the_clusters,
    test_s13_local_the_client_is_seen_as_itself_where_a_pod_is_and_refused_elsewhere,
    test_s13_the_policy_changes_while_clients_call,
)

__all__ = [
    "quick_errors",
    "test_a_pod_that_is_sent_to_itself_gets_an_answer",
    "test_exempt_sources_are_not_masqueraded",
    "test_only_calls_from_outside_the_cluster_networks_are_masqueraded",
    "test_s1_all_pods_answer_a_host_and_see_its_own_address",
    "test_s1_the_local_route_of_each_vip_has_the_nodes_address_as_source",
    "test_s2_the_api_server_is_reached_from_every_node",
    "test_s11_masquerade_all_shows_the_node_for_every_connection",
    "test_s12_a_pod_sees_the_pod_that_called",
    "test_s13_cluster_any_node_serves_and_the_pod_sees_that_node",
    "test_s13_local_follows_the_pod_to_the_node",
    "test_s13_local_pods_and_processes_of_a_node_without_an_endpoint_are_served_by_the_clusters",
    "test_s13_local_the_client_is_seen_as_itself_where_a_pod_is_and_refused_elsewhere",
    "test_s13_the_policy_changes_while_clients_call",
    "world",
]

pytestmark = pytest.mark.thorough
