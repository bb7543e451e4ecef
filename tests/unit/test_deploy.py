"""What is in deploy/ fits what kroute does."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from kroute.director import watch
from kroute.watchers.resources import WATCHED, Resource

DEPLOY = Path(__file__).parents[2] / "deploy"


def granted(file: str, kind: str) -> set[tuple[str, str, str]]:
    """What the role of this kind grants: group, resource and verb."""
    documents = list(yaml.safe_load_all((DEPLOY / file).read_text()))
    [role] = [document for document in documents if document["kind"] == kind]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("file", "resources"), [("rbac.yaml", WATCHED), ("director-rbac.yaml", watch.watched("app=web"))]
)
def test_the_role_allows_what_kroute_does_and_nothing_else(file: str, resources: Iterable[Resource]) -> None:
    needed = {("events.k8s.io", "events", "create")}
    for watched in resources:
        prefix, resource = watched.path.rsplit("/", 1)
        group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
        needed |= {(group, resource, verb) for verb in ("list", "watch")}
    assert granted(file, "ClusterRole") == needed


def test_a_director_may_share_a_lease_in_its_namespace() -> None:
    leases = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    assert granted("director-rbac.yaml", "Role") == leases
