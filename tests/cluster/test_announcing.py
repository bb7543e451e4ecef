"""The chart runs BIRD beside kroute: a router beside the nodes learns an address from them, and calls follow."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import announcements
from tests.cluster import load as load_of_calls
from tests.cluster.agents import SYSTEM
from tests.cluster.installation import install, rolls_out, uninstall, upgrade
from tests.cluster.machines import Cluster
from tests.cluster.test_allocation import balanced, ingress
from tests.cluster.test_load_balancers import at
from tests.cluster.web import LEAST_CALLS, LONGEST, Web
from tests.lab.routers import BirdProcess

BIRD = "daemonset/kroute-bird"
SETTINGS = tuple(word for value in announcements.VALUES for word in ("--set", value))


class Routes:
    """What the router knows of the nodes."""

    def __init__(self, cluster: Cluster, process: BirdProcess, addresses: list[str]) -> None:
        self._cluster, self._process, self._addresses = cluster, process, addresses

    def are_by(self, *nodes: str) -> bool:
        """Whether it reaches each address by these nodes and no others."""
        places = [self._cluster.nodes[name].place for name in nodes]
        expected = [{place.addresses[index] for place in places} for index in range(len(self._addresses))]
        return [self._process.learned(address) for address in self._addresses] == expected

    def sessions(self) -> dict[str, list[str]]:
        """The line of each session: since when it is as it is, and how it is."""
        lines = [line.split() for line in self._process.ask("show protocols").splitlines()]
        return {words[0]: words[1:] for words in lines if words[1:2] == ["BGP"]}

    def all_are_up(self) -> bool:
        return {words[-1] for words in self.sessions().values()} == {"Established"}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Look all the time whether it has the routes by all nodes, and call. No call may fail."""
        end = self._cluster.directory / "end"
        load = Path(load_of_calls.__file__)

        def watch() -> list[list[set[str]]]:
            lost = []
            while not end.exists():
                if not self.are_by(*self._cluster.nodes):
                    lost.append([self._process.learned(address) for address in self._addresses])
                time.sleep(0.2)
            return lost

        def call(address: str) -> str:
            return self._cluster.run(
                sys.executable, str(load), f"http://{at(address)}/hostname", str(end), within=LONGEST
            )

        with ThreadPoolExecutor() as threads:
            watcher, *callers = threads.submit(watch), *(threads.submit(call, address) for address in self._addresses)
            try:
                yield
            finally:
                end.touch()
                seen = [json.loads(caller.result()) for caller in callers]
                lost = watcher.result()
                end.unlink()
        assert not lost
        assert not any(it["failed"] for it in seen), seen
        assert min(it["calls"] for it in seen) > LEAST_CALLS


def pods(cluster: Cluster) -> dict[str, int]:
    """How often BIRD's container was started again, on each node that has its pod."""
    selected = ("--selector", "app.kubernetes.io/name=kroute-bird", "-o", "json")
    items = json.loads(cluster.kubectl(*SYSTEM, "get", "pods", *selected))["items"]
    return {
        pod["spec"]["nodeName"]: status["restartCount"]
        for pod in items
        for status in pod["status"].get("containerStatuses", ())
    }


def bird_rolls_out(cluster: Cluster) -> None:
    cluster.kubectl(*SYSTEM, "rollout", "status", BIRD, "--timeout=10m")


def test_a_router_keeps_an_address_through_updates_and_loses_it_by_the_uninstallation(
    cluster: Cluster, web: Web
) -> None:
    names = web.names()
    try:
        with announcements.router(cluster) as process, cluster.having(balanced("announced")):
            upgrade(cluster, *SETTINGS)
            bird_rolls_out(cluster)
            cluster.wait_until("it has addresses", lambda: len(ingress(cluster, "announced")) == 2)
            addresses, nodes = ingress(cluster, "announced"), tuple(cluster.nodes)
            routes = Routes(cluster, process, addresses)
            cluster.wait_until("the router knows both nodes", lambda: routes.are_by(*nodes))
            for address in addresses:
                assert web.answers_from_wire(f"http://{at(address)}") == names
            before = routes.sessions()
            with routes.kept():
                upgrade(cluster, "--set", "settings.withdraw-grace=3s")
                cluster.kubectl(*SYSTEM, "rollout", "restart", "daemonset/kroute")
                rolls_out(cluster)
            assert routes.sessions() == before, "a session was touched"
            with routes.kept():
                cluster.kubectl(*SYSTEM, "rollout", "restart", BIRD)
                bird_rolls_out(cluster)
                cluster.wait_until("all sessions are up", routes.all_are_up)
            assert not {tuple(it) for it in before.values()} & {tuple(it) for it in routes.sessions().values()}
            with routes.kept():
                cluster.on(cluster.nodes["node1"], "pkill -STOP -x bird")
                cluster.wait_until("a BIRD that hangs is killed", lambda: pods(cluster) == {"node1": 1, "node2": 0})
                cluster.wait_until("all sessions are up", routes.all_are_up)
            for address in addresses:
                assert web.answers_from_wire(f"http://{at(address)}") == names
            uninstall(cluster)
            assert routes.are_by()
        cluster.wait_until("all pods of BIRD have ended", lambda: pods(cluster) == {})
        for node in cluster.nodes.values():
            assert cluster.on(node, "ls /run/bird; pgrep -x bird", check=False) == ""
    finally:
        install(cluster)
    assert web.answers_from_pod("node1", f"http://{web.addresses[0]}") == names
