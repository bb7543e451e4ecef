"""The limits of the connection tracker that the settings name are in force on a node, and go with a cleanup."""

from tests.lab.deployment import Deployment, eventually
from tests.lab.world import World

RESYNC_PERIOD = 5.0
PREFIX = "net.netfilter.nf_conntrack_"
FLAGS = {
    "tcp_timeout_established": ("--conntrack-tcp-timeout-established=24h", "86400"),
    "tcp_timeout_close_wait": ("--conntrack-tcp-timeout-close-wait=1h", "3600"),
    "tcp_be_liberal": ("--conntrack-tcp-be-liberal", "1"),
    "udp_timeout": ("--conntrack-udp-timeout=11s", "11"),
    "udp_timeout_stream": ("--conntrack-udp-timeout-stream=77s", "77"),
}
"""The flags that a network namespace has values of its own for."""


async def test_they_are_set_repaired_and_put_back_and_the_limit_of_the_machine_is_one_line(
    world: World, deployment: Deployment
) -> None:
    node1 = world.cluster.node("node1")
    before = {name: node1.sysctl(PREFIX + name) for name in FLAGS}
    wanted = {name: value for name, (_, value) in FLAGS.items()}
    flags = [flag for flag, _ in FLAGS.values()]
    await deployment.start("--conntrack-max-per-core=1000000", *flags, nodes=("node1",))
    assert {name: node1.sysctl(PREFIX + name) for name in FLAGS} == wanted
    lines = deployment.agents["node1"].log.read_text().splitlines()
    assert len([line for line in lines if "sysctl.failed" in line]) == 1
    node1.sysctl(f"{PREFIX}udp_timeout", 12)

    def is_repaired() -> None:
        assert node1.sysctl(f"{PREFIX}udp_timeout") == "11"

    await eventually(is_repaired, 2 * RESYNC_PERIOD)
    await deployment.cleanup()
    assert {name: node1.sysctl(PREFIX + name) for name in FLAGS} == before
