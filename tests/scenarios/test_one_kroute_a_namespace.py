"""A live agent keeps agents and cleanups out of its network namespace, whatever their state directories."""

from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.kroute_process import KrouteProcess
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import World

REFUSAL = "already running in this network namespace"


async def start_elsewhere(node: Node, state_dir: Path, *argv: str) -> KrouteProcess:
    """Start kroute on this node, with another state directory than the node's own."""
    return await KrouteProcess.start(
        [*argv, "--state-dir", str(state_dir)],
        namespace=node.namespace,
        state_dir=state_dir,
        log=state_dir.parent / f"{state_dir.name}-{argv[0]}.log",
        environment={},
    )


async def waits(process: KrouteProcess) -> None:
    assert any("kroute.waiting" in line and REFUSAL in line for line in process.log.read_text().splitlines())


async def test_beside_a_live_agent_a_second_one_waits_and_a_cleanup_is_refused_whatever_their_directories(
    world: World, deployment: Deployment, tmp_path: Path
) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("web", "10.254.3.1", "fd00:10:254::3:1"), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1", "node2"))  # two network namespaces: neither refuses the other
    (tmp_path / "elsewhere").mkdir()
    before = node1.ipvs()
    assert "TCP 10.254.3.1:80" in " ".join(before)

    argv = ("run", *deployment.source, "--node-name", "node1")
    for each in ((*argv, "--other-proxies", "ignore"), ("cleanup",)):
        process = await start_elsewhere(node1, tmp_path / "elsewhere", *each)
        assert await process.wait() == 1, each
        lines = process.log.read_text().splitlines()
        refusals = [line for line in lines if line.strip() and "settings.in_force" not in line]
        assert len(refusals) == 1, refusals
        assert REFUSAL in refusals[0]
        assert str(deployment.agents["node1"].pid) in refusals[0]
    process = await start_elsewhere(node1, tmp_path / "elsewhere", *argv)
    await eventually(lambda: waits(process))
    assert node1.ipvs().keys() == before.keys()

    await deployment.agents["node1"].kill()  # the kernel frees the lock however the process ends
    await process.ready()
    assert await process.terminate() == 0
    assert node1.ipvs().keys() == before.keys()
    await deployment.start(nodes=("node1",))
