"""The manifests of deploy/kustomize, run as they are: command, environment, volumes, capabilities and rights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from kroute import __version__
from kroute.kernel import modules
from tests.apiserver.resources import TYPES
from tests.lab import objects
from tests.lab.api_server import PORT, ApiServer
from tests.lab.cluster import Node
from tests.lab.container import Container, RunningContainer, host_path, image_user
from tests.lab.deployment import eventually, goes_on
from tests.lab.manifests import KUSTOMIZE, granted, render, the, with_component
from tests.lab.objects import Object
from tests.lab.other_proxies import Served, kube_proxy_leftovers, wiped
from tests.lab.routers import BirdProcess
from tests.lab.topology import CLIENT, NODES
from tests.scenarios.conftest import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
EVERYTHING = {(it.group, it.plural, verb) for it in TYPES for verb in VERBS} | {
    ("networking.k8s.io", "servicecidrs", "list")
}

ROUTER = f"""
log stderr all;
router id {CLIENT.ip};
protocol device {{ }}
protocol bgp node1 {{
  local {CLIENT.ip} as 65000; neighbor {NODES["node1"].ip} as 64512; connect delay time 1;
  ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }};
}}
"""
ANNOUNCED = {
    "KROUTE_ADVERTISE_CLUSTER_IP": "true",
    "KROUTE_PEER_ROUTER_IPS": CLIENT.ip,
    "KROUTE_PEER_ROUTER_ASNS": "65000",
}


@dataclass
class Pods:
    """The pods of the rendered manifests, on the nodes of the lab; `config` is the operator's configuration."""

    api: ApiServer
    service_account: Path
    scratch: Path
    config: dict[str, str]
    started: list[RunningContainer] = field(default_factory=list)
    base: list[Object] = field(default_factory=lambda: render(KUSTOMIZE / "base"))
    uninstall: list[Object] = field(default_factory=lambda: render(KUSTOMIZE / "uninstall"))
    hand_over: list[Object] = field(default_factory=lambda: render(KUSTOMIZE / "hand-over"))

    def kroute(self, node: Node) -> Container:
        pod = self.pod()
        [container] = pod["containers"]
        return Container.of(node, pod, container, config=self._config_map(), service_account=self.service_account)

    def pod(self, daemonset: str = "kroute") -> Object:
        spec: Object = the("DaemonSet", self.base, daemonset)["spec"]["template"]["spec"]
        return spec

    def announce(self, directory: Path) -> None:
        """Have the component `announce`, with settings for the router outside."""
        overlay = directory / "overlay"
        overlay.mkdir()
        self.base = with_component("announce", overlay)
        self.config |= ANNOUNCED

    def bird(self, node: Node, kind: str = "containers") -> Container:
        pod = self.pod("kroute-bird")
        [container] = pod[kind]
        return Container.of(node, pod, container, config={})

    def module_loader(self, node: Node) -> Container:
        pod = self.pod()
        [container] = pod["initContainers"]
        return Container.of(node, pod, container, config={})

    def uninstaller(self, node: Node) -> Container:
        pod = the("DaemonSet", self.uninstall, "kroute-uninstall")["spec"]["template"]["spec"]
        [container] = pod["containers"]
        return Container.of(node, pod, container, config={})

    def giver_back(self, node: Node) -> Container:
        pod = the("DaemonSet", self.hand_over, "kroute-hand-over")["spec"]["template"]["spec"]
        [container] = pod["containers"]
        return Container.of(node, pod, container, config={})

    def start(self, container: Container) -> RunningContainer:
        running = container.start(self._log())
        self.started.append(running)
        return running

    async def run(self, container: Container, *command: str) -> tuple[int, str]:
        return await (container.with_command(*command) if command else container).run(self._log())

    def allow(self, rights: set[tuple[str, str, str]]) -> None:
        """Have the API server forbid every other right in `EVERYTHING`."""
        self.api.forbid(*((verb, resource) for _, resource, verb in EVERYTHING - rights))

    def _config_map(self) -> dict[str, str]:
        config_map = the("ConfigMap", self.base)["data"]
        assert config_map.keys() >= {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}
        return {**config_map, **self.config}

    def _log(self) -> Path:
        return self.scratch / f"container-{len(list(self.scratch.glob('*.log')))}.log"


@pytest.fixture
def pods(world: World, tmp_path: Path) -> Iterator[Pods]:
    """The pods, not yet started. An API server on node3 has one Service and allows what the ClusterRole grants."""
    account = tmp_path / "account"
    account.mkdir()
    node3 = world.cluster.node("node3")
    web = [objects.service("web", *CLUSTER_IPS), *objects.endpoint_slices("web", world.web)]
    nodes = [objects.node(node) for node in world.nodes]
    api = ApiServer(node3, tmp_path, [*nodes, *web], service_account=account)
    api.start()
    made = Pods(api, account, tmp_path, {"KUBERNETES_SERVICE_HOST": node3.ip, "KUBERNETES_SERVICE_PORT": str(PORT)})
    made.allow(granted(the("ClusterRole", made.base)) | granted(the("Role", made.base)))
    try:
        yield made
    finally:
        for running in made.started:
            running.kill()
        api.stop()


@contextmanager
def as_they_were(*nodes: Node) -> Iterator[None]:
    """Check that the block leaves the nodes as it found them."""
    before = {node.name: node.snapshot() for node in nodes}
    yield
    for node in nodes:
        changed = before[node.name].diff(node.snapshot())
        assert not changed, f"{node.name}: {changed}"


async def uninstalled(pods: Pods, *nodes: Node) -> None:
    """Run an uninstaller on the nodes, wait until each is done and ready, and delete it."""
    running = {node.name: pods.start(pods.uninstaller(node)) for node in nodes}
    for node in nodes:
        await running[node.name].says(f"{node.name} is clean")
        assert running[node.name].running
        container = the("DaemonSet", pods.uninstall, "kroute-uninstall")["spec"]["template"]["spec"]["containers"][0]
        code, output = await running[node.name].execute(*container["readinessProbe"]["exec"]["command"])
        assert code == 0, output
        assert await running[node.name].terminate() == 0


async def test_the_daemonset_serves_as_it_is_written(world: World, pods: Pods) -> None:
    node1 = world.cluster.node("node1")
    with as_they_were(node1):
        kroute = pods.start(pods.kroute(node1))
        await kroute.says("kroute.ready")
        for family in FAMILIES:
            assert len(await world.visitor.spread(family.service_ip, 8080, 6)) == 3
        assert node1.sysctl("net.ipv4.vs.conntrack") == "1"
        code, findings = await kroute.execute("kroute", "check")
        assert code == 0, findings
        code, changes = await kroute.execute("kroute", "plan")
        assert code == 0, changes
        assert await kroute.terminate() == 0
        assert len(await world.visitor.spread("10.254.0.10", 8080, 6)) == 3
        await uninstalled(pods, node1)


async def test_a_restart_of_the_pod_changes_nothing(world: World, pods: Pods) -> None:
    node1 = world.cluster.node("node1")
    first = pods.start(pods.kroute(node1))
    await first.says("kroute.ready")
    stream = await world.visitor.open_stream("10.254.0.10", 8080)
    assert await first.terminate() == 0
    with as_they_were(node1):
        second = pods.start(pods.kroute(node1))
        await second.says("kroute.ready")
    await stream.close()
    assert await second.terminate() == 0
    await uninstalled(pods, node1)


async def test_the_image_starts_kroute_and_as_its_own_user_lets_it_look_only(world: World, pods: Pods) -> None:
    image = pods.kroute(world.cluster.node("node1"))
    user, group = image_user()
    unprivileged = replace(image, capabilities=(), security={**image.security, "runAsUser": user, "runAsGroup": group})
    assert await pods.run(unprivileged, "kroute", "--version") == (0, f"kroute, version {__version__}\n")
    code, findings = await pods.run(unprivileged, "kroute", "check")
    assert code == 1
    assert all(f"CAP_{name} is missing" in findings for name in image.capabilities), findings
    assert "Traceback" not in findings


async def test_a_process_of_the_pod_has_the_capabilities_that_are_granted_and_no_others(
    world: World, pods: Pods
) -> None:
    code, status = await pods.run(pods.kroute(world.cluster.node("node1")), "cat", "/proc/self/status")
    assert code == 0
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    net_admin = 1 << 12
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(fields[name], 16) == net_admin, name
    assert fields["NoNewPrivs"] == "1"


async def test_the_check_names_each_capability_that_is_taken_away(world: World, pods: Pods) -> None:
    granted_to_it = pods.kroute(world.cluster.node("node1"))
    for name in granted_to_it.capabilities:
        code, findings = await pods.run(granted_to_it.without(name), "kroute", "check")
        assert code == 1
        [line] = [it for it in findings.splitlines() if it.startswith("FAIL") and "capabilities" in it]
        assert f"CAP_{name} " in line


async def test_the_check_names_each_right_that_is_taken_away(world: World, pods: Pods) -> None:
    rights = granted(the("ClusterRole", pods.base))
    for right in sorted(rights):
        pods.allow(rights - {right})
        code, findings = await pods.run(pods.kroute(world.cluster.node("node1")), "kroute", "check")
        assert code == 1
        assert "rbac" in findings, findings[-1500:]
        _, resource, verb = right
        assert [it.split(maxsplit=2) for it in findings.splitlines() if it.startswith("FAIL") and "rbac" in it] == [
            ["FAIL", "rbac", f"kroute may not {verb} {resource}"]
        ]


@pytest.mark.every_kernel
async def test_the_module_loader_needs_its_one_capability_and_no_other(world: World, pods: Pods) -> None:
    """It does not need that one either, where the module is built into the kernel."""
    loader = pods.module_loader(world.cluster.node("node1"))
    assert loader.capabilities == ("SYS_MODULE",)
    code, output = await pods.run(loader)
    assert code == 0, output
    unused = "ip_vs_ovf"  # no other test asks for this scheduler
    is_built_in = modules.is_present(unused)
    code, output = await pods.run(loader.without("SYS_MODULE"), "modprobe", "--all", unused)
    assert (code == 0) == is_built_in
    assert is_built_in or "Operation not permitted" in output
    code, output = await pods.run(loader, "modprobe", "--all", unused)
    assert code == 0, output


async def test_a_pod_that_was_not_told_of_the_api_server_says_what_to_do(world: World, pods: Pods) -> None:
    pods.config = {}
    code, output = await pods.run(pods.kroute(world.cluster.node("node1")))
    assert code == 2
    assert "no API server" in output


async def test_s17_uninstalling_leaves_three_nodes_as_they_were_and_each_says_so(world: World, pods: Pods) -> None:
    with as_they_were(*world.nodes):
        running = [pods.start(pods.kroute(node)) for node in world.nodes]
        for kroute in running:
            await kroute.says("kroute.ready")
        for node in world.nodes:
            for family in FAMILIES:
                assert (await node.http(family.service_ip, 8080)).host.startswith("web")
        for kroute in running:
            assert await kroute.terminate() == 0
        await uninstalled(pods, *world.nodes)
    for node in world.nodes:
        assert not any(node.state_dir.iterdir())


async def test_the_uninstaller_waits_for_an_agent_that_still_runs_by_being_started_again(
    world: World, pods: Pods
) -> None:
    node1 = world.cluster.node("node1")
    kroute = pods.start(pods.kroute(node1))
    await kroute.says("kroute.ready")
    code, output = await pods.run(pods.uninstaller(node1))
    assert code == 1
    assert "stop it first" in output
    assert "node1 is not clean" in output
    assert await kroute.terminate() == 0
    await uninstalled(pods, node1)


def probes(pods: Pods) -> list[list[str]]:
    [bird] = pods.pod("kroute-bird")["containers"]
    return [bird[name]["exec"]["command"] for name in ("livenessProbe", "readinessProbe")]


async def leave(pods: Pods, bird: RunningContainer) -> None:
    """End BIRD's container as the kubelet does."""
    [described] = pods.pod("kroute-bird")["containers"]
    await bird.execute(*described["lifecycle"]["preStop"]["exec"]["command"])
    assert await bird.wait() == 0, bird.output()


async def test_routers_keep_what_pods_announce_while_both_are_updated_and_lose_it_by_an_uninstallation(
    world: World, pods: Pods, tmp_path: Path
) -> None:
    node1 = world.cluster.node("node1")
    pods.announce(tmp_path)
    shared = host_path(node1, {"path": "/run/bird", "type": "DirectoryOrCreate"})
    router = BirdProcess.router(world.cluster.client, tmp_path / "router", ROUTER)

    def knows(*next_hops: str) -> None:
        expected = [
            {NODES[name].ip6 if ":" in address else NODES[name].ip for name in next_hops} for address in CLUSTER_IPS
        ]
        assert [router.learned(address) for address in CLUSTER_IPS] == expected

    def session() -> list[str]:
        *_, line = router.ask("show protocols node1").splitlines()
        return line.split()

    def is_established() -> None:
        assert session()[-1] == "Established"

    try:
        with as_they_were(node1):
            waiting = pods.start(pods.bird(node1, "initContainers"))
            kroute = pods.start(pods.kroute(node1))
            assert waiting.running
            await kroute.says("kroute.ready")
            assert await waiting.wait() == 0
            bird = pods.start(pods.bird(node1))
            await eventually(partial(knows, "node1"), within=60)
            for probe in probes(pods):
                code, output = await bird.execute(*probe)
                assert code == 0, output
            code, findings = await kroute.execute("kroute", "check")
            assert code == 0, findings

            is_established()
            before = session()
            assert await kroute.terminate() == 0
            kroute = pods.start(pods.kroute(node1))
            await kroute.says("kroute.ready")
            knows("node1")
            assert session() == before, "BIRD's session was touched by an update of kroute"

            await leave(pods, bird)
            knows("node1")
            bird = pods.start(pods.bird(node1))
            await eventually(is_established, within=60)
            knows("node1")

            assert await kroute.terminate() == 0
            knows("node1")
            await uninstalled(pods, node1)
            knows()
            is_established()
            await leave(pods, bird)
            assert not list(shared.iterdir())
    finally:
        router.kill()


async def test_bird_needs_each_capability_that_its_pod_has(world: World, pods: Pods, tmp_path: Path) -> None:
    node1 = world.cluster.node("node1")
    pods.announce(tmp_path)
    pods.config["KROUTE_BFD"] = "true"
    kroute = pods.start(pods.kroute(node1))
    await kroute.says("kroute.ready")
    bird = pods.bird(node1)
    says = {"NET_BIND_SERVICE": "bind: Permission denied", "NET_RAW": "SO_PRIORITY: Operation not permitted"}
    assert says.keys() == set(bird.capabilities)
    for name, refusal in says.items():
        lacking = pods.start(bird.without(name))
        await lacking.says(refusal)
        assert await lacking.terminate() == 0
    assert await kroute.terminate() == 0
    await uninstalled(pods, node1)


async def test_a_pod_that_waits_for_kroute_ends_when_it_is_deleted(world: World, pods: Pods, tmp_path: Path) -> None:
    node1 = world.cluster.node("node1")
    pods.announce(tmp_path)
    waiting = pods.start(pods.bird(node1, "initContainers"))
    await eventually(partial(_holds_sigterm, waiting), within=60)
    assert await waiting.terminate() != 0


@pytest.mark.legacy
async def test_a_node_goes_back_to_kube_proxy_by_one_pod_that_waits_for_it(world: World, pods: Pods) -> None:
    """It waits for the agent's end, then for kube-proxy; what serves stays, and open connections with it."""
    node1 = world.cluster.node("node1")
    with wiped(node1):
        kroute = pods.start(pods.kroute(node1))
        await kroute.says("kroute.ready")
        stream = await world.visitor.open_stream(CLUSTER_IPS[0], 8080)
        back = pods.start(pods.giver_back(node1))
        assert await kroute.terminate() == 0
        assert (node1.state_dir / "ledger").exists()
        kube_proxy_leftovers(
            node1, [Served(it.service_ip, 8080, [(it.of(pod), 8080) for pod in world.web]) for it in FAMILIES]
        )
        await back.says("the node is kube-proxy's")
        container = the("DaemonSet", pods.hand_over, "kroute-hand-over")["spec"]["template"]["spec"]["containers"][0]
        code, output = await back.execute(*container["readinessProbe"]["exec"]["command"])
        assert code == 0, output
        assert not any(node1.state_dir.iterdir())
        assert len(node1.ipvs()) == len(FAMILIES)
        await goes_on(stream)
        assert await back.terminate() == 0
        handed_over = node1.snapshot()
        again = pods.start(pods.giver_back(node1))
        await again.says("nothing of kroute's is on this node")
        assert await again.terminate() == 0
        assert not handed_over.diff(node1.snapshot())
        await stream.close()


@pytest.mark.legacy
async def test_a_pod_that_waits_for_the_other_proxy_ends_when_it_is_deleted(world: World, pods: Pods) -> None:
    node1 = world.cluster.node("node1")
    kroute = pods.start(pods.kroute(node1))
    await kroute.says("kroute.ready")
    assert await kroute.terminate() == 0
    with as_they_were(node1):
        back = pods.start(pods.giver_back(node1))
        await eventually(lambda: _holds_sigterm(back), within=60)
        assert await back.terminate() == 0
        assert not back.output()
    await uninstalled(pods, node1)


async def _holds_sigterm(running: RunningContainer) -> None:
    """Assert that the first process handles SIGTERM: the kernel would drop it otherwise."""
    _, status = await running.execute("cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    caught = int(fields.get("SigCgt", "0"), 16)
    assert caught & (1 << (15 - 1))
