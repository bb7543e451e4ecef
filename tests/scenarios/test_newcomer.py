"""A newcomer's way from the README to packets, by each of the three ways, with the commands of the pages.

What a newcomer does by hand is done here: the example's addresses become the cluster's, and a file is edited.
The API server is the lab's stand-in, kubelets and the DaemonSet's controller are `tests/lab/kubelet.py`, and systemd
is in tests/machine/under_systemd.py. helm, dpkg, the image, crun, the kernel and the packets are real.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kroute import __version__
from release import Source, manifests
from tests.lab import objects
from tests.lab.api_server import PORT, ApiServer
from tests.lab.chart import CHART, helm
from tests.lab.cluster import Node
from tests.lab.container import package
from tests.lab.deployment import eventually
from tests.lab.kubelet import Kubelets
from tests.lab.objects import Object
from tests.lab.packaged_nodes import PackagedNodes, command, kubeconfig
from tests.lab.topology import POD_RANGE
from tests.scenarios.conftest import FAMILIES, World
from tests.unit.documented_commands import ROOT, commands_of_page

EXTERNAL_IP = "203.0.113.9"


def documented(page: str, *beginning: str) -> list[tuple[str, ...]]:
    """The commands of a page that begin so."""
    found = [it.words for it in commands_of_page(ROOT / page) if it.is_whole]
    return [words for words in found if words[: len(beginning)] == beginning]


@dataclass
class Newcomer:
    """Somebody with a cluster of two nodes and an API server on a third, and a Service with an external IP."""

    world: World
    account: Path
    scratch: Path
    kubelets: Kubelets

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.world.nodes[:2]

    def own(self, words: tuple[str, ...]) -> list[str]:
        """A command with the cluster's values in place of the example's, or in the file `values.yaml`."""
        server = self.world.cluster.node("node3").ip
        if "values.yaml" in words:
            path = self.scratch / "values.yaml"
            path.write_text(yaml.safe_dump({"apiServer": {"host": server}, "settings": {"cluster-cidr": POD_RANGE}}))
            return [str(path) if word == "values.yaml" else word for word in words]
        values = {r"192\.168\.123\.2\b": server, r"10\.244\.0\.0/16": POD_RANGE}
        assert all(re.search(it, " ".join(words)) for it in values), f"the example lacks a value: {words}"
        made = list(words)
        for example, value in values.items():
            made = [re.sub(example, value, word) for word in made]
        return made

    async def rolls_out(self, rendered: list[Object]) -> None:
        await self.kubelets.apply(rendered)
        await self.kubelets.are_ready()
        for running in self.kubelets.running.values():
            code, findings = await running.execute("kroute", "check")
            assert code == 0, findings

    async def has_packets_through(self) -> None:
        """A pod, and each node's own processes, reach the Service, by its ClusterIPs and by its external IP."""
        for family in FAMILIES:
            assert len(await self.world.visitor.spread(family.service_ip, 8080, 6)) == 3
        assert (await self.world.visitor.http(EXTERNAL_IP, 8080)).host.startswith("web")
        for node in self.nodes:
            assert (await node.http(FAMILIES[0].service_ip, 8080)).host.startswith("web")

    async def cleans_up(self) -> None:
        for node in self.nodes:
            cleanup = await node.kroute("cleanup")
            assert await cleanup.wait() == 0, cleanup.log.read_text()


@pytest.fixture
def newcomer(world: World, tmp_path: Path) -> Iterator[Newcomer]:
    account = tmp_path / "account"
    account.mkdir()
    web = objects.service("web", *(it.service_ip for it in FAMILIES), externalIPs=[EXTERNAL_IP])
    items = [*map(objects.node, world.nodes), web, *objects.endpoint_slices("web", world.web)]
    api = ApiServer(world.cluster.node("node3"), tmp_path, items, service_account=account)
    api.start()
    kubelets = Kubelets(world.nodes[:2], tmp_path, account)
    try:
        yield Newcomer(world, account, tmp_path, kubelets)
    finally:
        kubelets.kill()
        api.stop()


def rendered_by_helm(words: list[str]) -> list[Object]:
    """What `helm install` would send, by `helm template` with the same words."""
    done = helm("template", *(str(CHART) if word == "deploy/helm/kroute" else word for word in words[2:]))
    assert done.returncode == 0, done.stderr
    return [it for it in yaml.safe_load_all(done.stdout) if it]


async def test_by_helm_from_the_readme_and_back(newcomer: Newcomer) -> None:
    [install] = documented("README.md", "helm", "install")
    await newcomer.rolls_out(rendered_by_helm(newcomer.own(install)))
    await newcomer.has_packets_through()
    await newcomer.kubelets.delete()
    [upgrade] = documented("docs/uninstall.md", "helm", "upgrade")
    reused = newcomer.own(install)[4:]
    await newcomer.kubelets.apply(rendered_by_helm([*(it for it in upgrade if it != "--reuse-values"), *reused]))
    await newcomer.kubelets.are_ready()
    for node in newcomer.nodes:
        assert not node.ipvs()
    await newcomer.kubelets.delete()


async def test_by_install_yaml(newcomer: Newcomer) -> None:
    manifests.build(Source.here(), newcomer.scratch)
    [sed] = documented("docs/release.md", "sed")
    text = command(*(str(newcomer.scratch / word) if word == "install.yaml" else word for word in newcomer.own(sed)))
    rendered = [it for it in yaml.safe_load_all(text) if it]
    assert f"image: REGISTRY/kroute:{__version__}" in text
    await newcomer.rolls_out(rendered)
    await newcomer.has_packets_through()
    await newcomer.kubelets.delete()
    await newcomer.cleans_up()


async def test_by_the_debian_package(newcomer: Newcomer) -> None:
    assert documented("docs/release.md", "apt", "install")
    assert documented("docs/release.md", "vi") == [("vi", "/etc/kroute/kroute.yaml")]
    machines = PackagedNodes(newcomer.scratch)
    try:
        assert "Setting up kroute" in machines.install(package())
        server = f"https://{newcomer.world.cluster.node('node3').ip}:{PORT}"
        for node in newcomer.nodes:
            root = machines.root(node)
            assert command("chroot", root, "kroute", "--version") == f"kroute, version {__version__}\n"
            kubeconfig(server, newcomer.account, root)
            settings = root / "etc/kroute/kroute.yaml"
            settings.write_text(f"kubeconfig: /etc/kroute/kubeconfig\ncluster-cidr: {POD_RANGE}\n")
            machines.start(node, root)
        for node in newcomer.nodes:
            await eventually(lambda node=node: is_ready(node, machines), within=60)
        await newcomer.has_packets_through()
        machines.stop()
        await newcomer.cleans_up()
    finally:
        machines.close()


async def is_ready(node: Node, machines: PackagedNodes) -> None:
    try:
        status = await node.http_status(node.ip, 10256, "/readyz")
    except OSError as error:
        status = str(error)
    assert status == 200, machines.log(node)
