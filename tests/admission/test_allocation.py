"""The allocator on a real API server, with the rights of its component in deploy/ and no others."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.admission import control_plane
from tests.admission.control_plane import ApiServer
from tests.lab.manifests import with_component
from tests.lab.objects import Object

pytestmark = pytest.mark.skipif(control_plane.MISSING is not None, reason=str(control_plane.MISSING))

RANGE = "192.0.2.0/31"
ACCOUNT = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


class Scene:
    """A real API server, and a kubeconfig of kroute's account on it."""

    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        self._server = server
        self._kubeconfig = kubeconfig

    def kubectl(self, *arguments: str, content: str = "") -> str:
        done = self._server.kubectl(*arguments, content=content)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make(self, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        item: Object = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], **spec},
        }
        self.kubectl("create", "-f", "-", content=json.dumps(item))

    def allocate(self, name: str) -> Object:
        """What an allocator says that makes its passes now."""
        words = [sys.executable, "-m", "tests.admission.allocating", str(self._kubeconfig), name, RANGE]
        done = self._server.run(*words)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def addresses(self) -> dict[str, list[str]]:
        items = json.loads(self.kubectl("get", "services", "-o", "json"))["items"]
        entries = {it["metadata"]["name"]: it["status"]["loadBalancer"].get("ingress", []) for it in items}
        assert all(entry["ipMode"] == "VIP" for found in entries.values() for entry in found)
        return {name: [entry["ip"] for entry in found] for name, found in entries.items() if found}

    def expire(self) -> None:
        """Delete the Lease: the next allocator makes it again."""
        self.kubectl("--namespace", "kube-system", "delete", "lease", "kroute-allocator")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("control-plane")
    account = [it for it in with_component("load-balancer-addresses", directory) if it["kind"] in ACCOUNT]
    with control_plane.running(directory) as server:
        scene = Scene(server, directory / "kubeconfig")
        scene.kubectl("apply", "-f", "-", content=yaml.safe_dump_all(account))
        token = scene.kubectl("--namespace", "kube-system", "create", "token", "kroute").strip()
        cluster = {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kroute",
            "contexts": [{"name": "kroute", "context": {"cluster": "kroute", "user": "kroute"}}],
            "clusters": [{"name": "kroute", "cluster": cluster}],
            "users": [{"name": "kroute", "user": {"token": token}}],
        }
        (directory / "kubeconfig").write_text(json.dumps(content))
        yield scene


def test_services_get_addresses_and_give_them_back(scene: Scene) -> None:
    scene.make("other", loadBalancerClass="example.com/other")
    scene.make("asking", {"kroute.io/load-balancer-ips": "192.0.2.1"})
    scene.make("first", loadBalancerClass="kroute.io")
    scene.make("late")
    assert scene.allocate("one") == {"role": "active", "complete": [False, False]}
    assert scene.addresses() == {"asking": ["192.0.2.1"], "first": ["192.0.2.0"]}
    assert scene.allocate("two")["role"] == "standby"
    scene.kubectl("patch", "service", "first", "--patch", '{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}')
    assert scene.addresses() == {"asking": ["192.0.2.1"]}, "the API server clears the status"
    scene.expire()
    assert scene.allocate("two") == {"role": "active", "complete": [True, True]}
    assert scene.addresses() == {"asking": ["192.0.2.1"], "late": ["192.0.2.0"]}
    scene.expire()
    revision = scene.kubectl("get", "services", "-o", "jsonpath={.items[*].metadata.resourceVersion}")
    assert scene.allocate("three") == {"role": "active", "complete": [True, True]}
    assert scene.kubectl("get", "services", "-o", "jsonpath={.items[*].metadata.resourceVersion}") == revision
    scene.kubectl("delete", "service", "other", "asking", "first", "late")


def test_two_services_share_an_address_if_both_say_so(scene: Scene) -> None:
    annotations = {"kroute.io/share-load-balancer-ip": "web"}
    scene.make("a", annotations)
    scene.make("b", annotations, ports=[{"port": 443}])
    scene.make("c", annotations, ports=[{"port": 443}])
    scene.expire()
    assert scene.allocate("one")["complete"] == [True, True]
    assert scene.addresses() == {"a": ["192.0.2.0"], "b": ["192.0.2.0"], "c": ["192.0.2.1"]}
    scene.kubectl("delete", "service", "a", "b", "c")
