"""An agent that can open no more files still serves and reports it, and catches up when it can open files again."""

import resource

from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import World

FEWEST = 8
"""Every agent has more open files than this, so it can open no other."""


async def test_an_agent_without_file_descriptors_serves_on_and_recovers(world: World, deployment: Deployment) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("old", "10.254.4.1", "fd00:10:254::4:1"), *endpoint_slices("old", world.web))
    await deployment.start(nodes=("node1",))
    agent = deployment.agents["node1"]
    soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (FEWEST, hard))

    deployment.apply(service("new", "10.254.4.2", "fd00:10:254::4:2"), *endpoint_slices("new", world.web))
    node1.run("ip", "address", "add", "192.168.77.7/32", "dev", "lo")  # makes the agent read the node's addresses again

    def complains() -> None:
        assert "resources.exhausted" in agent.log.read_text()

    await eventually(complains, within=30)
    assert agent.running
    stream = await world.visitor.open_stream("10.254.4.1", 8080)
    await stream.close()

    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def serves_new() -> None:
        assert "TCP 10.254.4.2:8080" in node1.ipvs()

    await eventually(serves_new, within=60)
    node1.run("ip", "address", "del", "192.168.77.7/32", "dev", "lo")
    text = agent.log.read_text()
    assert "Traceback" not in text
    assert text.count("resources.exhausted") <= 6  # each part logs it once, however often it tries
    assert agent.running
