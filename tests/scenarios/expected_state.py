"""Compare a node's kernel with the state that given objects ask for.

The plans come from a new catalog that is given the final objects at once: the full computation that every incremental
state is compared with. The kernel is read with the tools that an operator has, not with kroute's own code.
"""

import json
from collections.abc import Iterable

import msgspec

from kroute.model.kinds import WATCHED
from kroute.model.node_facts import NodeInterfaces, node_facts
from kroute.model.objects import Applied, Listed
from kroute.model.plan import Plan, ServicePlan, VirtualServer
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from tests.lab import cluster
from tests.lab.firewall_state import entries
from tests.lab.objects import Object

KINDS = {kind.name: kind.type for kind in WATCHED}


def full_plans(items: Iterable[Object], node: "cluster.Node", settings: Settings | None = None) -> list[Plan]:
    """Return the plans of the node and of all Services, computed from `items` and the node's interfaces alone."""
    settings = settings or Settings(node_name=node.name)
    catalog = Catalog(settings, node_facts(settings, None, NodeInterfaces(_own_addresses(node))))
    catalog.take(Applied(msgspec.convert(item, KINDS[item["kind"]])) for item in items)
    catalog.take(Listed(kind) for kind in KINDS.values())
    return catalog.plan_marked()


def faults(node: "cluster.Node", plans: Iterable[Plan]) -> list[str]:
    """Return a line for each object of the kernel that is missing, differs or is not planned; [] when there is none.

    A real server that no plan names may still drain: its weight must be 0. A virtual server without planned real
    servers is allowed only while such real servers drain.
    """
    plans = list(plans)
    services = [plan for plan in plans if isinstance(plan, ServicePlan)]
    return [*_ipvs_faults(node, services), *_vip_faults(node, services), *_set_faults(node, plans)]


def assert_right(node: "cluster.Node", items: Iterable[Object], settings: Settings | None = None) -> None:
    """Raise an AssertionError that lists every difference between the kernel and the objects."""
    found = faults(node, full_plans(items, node, settings))
    assert not found, "\n".join(found)


def _own_addresses(node: "cluster.Node") -> frozenset[str]:
    links = json.loads(node.run("ip", "-j", "address"))
    return frozenset(it["local"] for link in links if link["ifname"] != "kube-ipvs0" for it in link["addr_info"])


def _ipvs_faults(node: "cluster.Node", plans: list[ServicePlan]) -> list[str]:
    actual = node.ipvs()
    planned = {str(server.key): server for plan in plans for server in plan.virtual_servers}
    served = {key for key, server in planned.items() if server.real_servers}
    found = [f"virtual server {key} is too many" for key in actual.keys() - planned.keys()]
    found += [f"virtual server {key} is missing" for key in served - actual.keys()]
    found += [f"virtual server {key} is empty" for key, state in actual.items() if not state.real_servers]
    for key in actual.keys() & planned.keys():
        server, state = planned[key], actual[key]
        if (state.scheduler, _persistence(state.flags)) != (server.scheduler, _planned_persistence(server)):
            found.append(f"virtual server {key} is {state.scheduler} {state.flags}, planned {server}")
        serving = {address for address, real in state.real_servers.items() if real.weight}
        desired = {_endpoint(real.address, real.port) for real in server.real_servers}
        if serving != desired:
            found.append(f"virtual server {key} has {sorted(serving)}, planned {sorted(desired)}")
    return found


def _persistence(flags: str) -> int:
    words = flags.split()
    return int(words[words.index("persistent") + 1]) if "persistent" in words else 0


def _planned_persistence(server: VirtualServer) -> int:
    return server.persistence.timeout if server.persistence else 0


def _vip_faults(node: "cluster.Node", plans: list[ServicePlan]) -> list[str]:
    vips = {vip.address: vip.source for plan in plans for vip in plan.vips}
    bound = {address.partition("/")[0] for address in node.addresses("kube-ipvs0")}
    found = [f"address {address} is too many" for address in bound - vips.keys()]
    found += [f"address {address} is missing" for address in vips.keys() - bound]
    routes = node.local_routes()
    found += [
        f"route to {address} has source {routes.get(address)!r}, planned {source!r}"
        for address, source in vips.items()
        if source is not None and routes.get(address) != source
    ]
    return found


def _set_faults(node: "cluster.Node", plans: list[Plan]) -> list[str]:
    desired = {entry for plan in plans for entry in plan.set_entries}
    actual = entries(node)
    return [
        *(f"set entry {entry} is too many" for entry in actual - desired),
        *(f"set entry {entry} is missing" for entry in desired - actual),
    ]


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
