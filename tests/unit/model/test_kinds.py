"""The list of watched kinds, and the other places that name kinds."""

from typing import get_args

from kroute.model.kinds import PODS, POLICY_KINDS, WATCHED, InitialSync, watched
from kroute.model.objects import EndpointSlice, KubernetesObject, Node, Service
from tests.builders import settings


def test_every_kind_of_object_has_one_row() -> None:
    types = [kind.type for kind in (*WATCHED, *POLICY_KINDS)]
    assert set(types) == set(get_args(KubernetesObject))
    assert len(types) == len(set(types))


def test_pods_are_watched_only_where_they_are_asked_for() -> None:
    assert watched(settings()) == WATCHED
    assert watched(settings(pod_weights=True)) == (*WATCHED, PODS)
    assert watched(settings(pod_weights=True, network_policies=True)) == (*WATCHED, *POLICY_KINDS)


def test_the_core_group_has_a_path_of_its_own() -> None:
    assert [kind.path for kind in WATCHED] == [
        "/api/v1/services",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/api/v1/nodes",
    ]


def test_the_initial_sync_is_complete_when_every_kind_has_been_listed() -> None:
    sync = InitialSync()
    for kind, missing in ((Node, ["EndpointSlice", "Service"]), (Service, ["EndpointSlice"]), (EndpointSlice, [])):
        assert not sync.is_complete
        sync.listed(kind)
        assert sync.missing == missing
    assert sync.is_complete
