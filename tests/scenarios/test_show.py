"""`kroute show` on a node under load: all Services, one Service in full with its clients, and rates."""

import json
import re
import signal
from collections import Counter

from kroute.firewall.sets import ROOM
from kroute.model.plan import AddressSet, SetEntry
from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall import NFTABLES, backend
from tests.lab.firewall_state import entries, set_name
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_observation import scraped

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)


async def test_services_and_one_in_full_with_its_clients(world: World, deployment: Deployment) -> None:
    node1, pod = world.cluster.node("node1"), world.visitor
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[:2]))
    await deployment.start(nodes=("node1",))
    stream = await pod.open_stream(CLUSTER_IPS[0], 8080)
    code, rows = await ask_json(node1, "show", "services")
    assert code == 0
    [row] = rows["items"]
    assert (row["service"], row["virtualServers"], row["serving"], row["state"]) == ("default/web", 2, 4, "serving")
    code, report = await ask_json(node1, "show", "service", "default/web")
    assert code == 0
    assert report["service"]["spec"]["clusterIPs"] == list(CLUSTER_IPS)
    assert {it["address"]: (it["isBound"], it["source"]) for it in report["vips"]} == {
        CLUSTER_IPS[0]: (True, node1.ip),
        CLUSTER_IPS[1]: (True, node1.ip6),
    }
    assert all(it["isThere"] for it in report["setEntries"])
    [connection] = report["connections"]
    virtual_server = tuple(connection[it] for it in ("protocol", "address", "port"))
    assert (connection["clientAddress"], connection["state"]) == (pod.ip, "ESTABLISHED")
    assert virtual_server == ("TCP", CLUSTER_IPS[0], 8080)
    assert connection["realServerAddress"] in {it.ip for it in world.web[:2]}

    async def connection_is_counted() -> None:
        _, report = await ask_json(node1, "show", "service", "default/web")
        assert report["virtualServers"][0]["traffic"]["connections"] == 1

    await eventually(connection_is_counted)  # the kernel updates its counters every two seconds
    await stream.close()
    assert (await ask_json(node1, "show", "service", "default/none"))[0] == 4


def in_the_kernel(node: Node) -> dict[str, tuple[int, int]]:
    """Return the number of entries and the limit of each set; nf_tables has no limit, so it is kroute's."""
    if backend() != NFTABLES:
        header = r"^Name: (\S+)$.*?maxelem (\d+).*?^Number of entries: (\d+)$"
        found = re.findall(header, node.run("ipset", "list", "-t"), re.MULTILINE | re.DOTALL)
        assert {capacity for _, capacity, _ in found} == {"262144"}
        return {name: (int(count), int(capacity)) for name, capacity, count in found}
    counts = Counter(set_name(entry) for entry in entries(node))
    names = [set_name(SetEntry(which, (address,))) for which in AddressSet for address in CLUSTER_IPS]
    return {name: (counts[name], ROOM.most) for name in names}


async def test_the_sets_are_as_full_as_the_kernel_says(world: World, deployment: Deployment) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("web", *CLUSTER_IPS, ports={"TCP": 8080, "UDP": 5353}), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    kernel = in_the_kernel(node1)
    assert kernel[set_name(SetEntry(AddressSet.CLUSTER_IP, (CLUSTER_IPS[0],)))][0] == 1
    assert kernel[set_name(SetEntry(AddressSet.NO_ENDPOINT, (CLUSTER_IPS[0],)))][0] == 1
    code, shown = await ask_json(node1, "show")
    assert code == 0
    assert {it["set"]: (it["entries"], it["capacity"]) for it in shown["sets"]} == kernel
    series = scraped(node1)
    assert {
        name: (series["kroute_set_entries", name], series["kroute_set_capacity", name]) for name in kernel
    } == kernel


async def test_rates_are_shown_until_interrupted(world: World, deployment: Deployment) -> None:
    node1, pod = world.cluster.node("node1"), world.visitor
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    stream = await pod.open_stream(CLUSTER_IPS[0], 8080, interval=0.05)
    watching = await node1.kroute("show", "-w", "-o", "json", "--interval", "0.5s")

    def has_seen_the_stream() -> None:
        lines = watching.log.read_text().splitlines()
        busiest = [json.loads(line)["items"][0] for line in lines if line.endswith("]}")]
        assert any(it["address"] == CLUSTER_IPS[0] and it["packets"] > 0 and it["active"] == 1 for it in busiest)

    await eventually(has_seen_the_stream)
    watching.signal(signal.SIGINT)
    assert await watching.wait() == 0
    await stream.close()
