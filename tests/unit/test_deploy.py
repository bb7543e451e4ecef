"""What is in deploy/ fits what kroute does."""

from pathlib import Path

import yaml

from kroute.watchers.resources import WATCHED

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_role_allows_what_kroute_does_and_nothing_else() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()))
    [role] = [document for document in documents if document["kind"] == "ClusterRole"]
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {("events.k8s.io", "events", "create")}
    for watched in WATCHED:
        prefix, resource = watched.path.rsplit("/", 1)
        group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
        needed |= {(group, resource, verb) for verb in ("list", "watch")}
    assert granted == needed
