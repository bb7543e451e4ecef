"""What kroute plans for the recorded objects on the recorded node, in the words of the recordings."""

from kroute.model.node_facts import NodeInterfaces, node_facts
from kroute.model.plan import ServicePlan, VirtualServerKey
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from tests import real_proxies
from tests.real_proxies import NODE_IPV4, NODE_IPV6, RecordedServer


def planned_virtual_servers() -> dict[VirtualServerKey, RecordedServer]:
    """Return the planned virtual servers, with the settings that the proxies had."""
    settings = Settings(node_name=real_proxies.NODE, cluster_cidrs=real_proxies.POD_RANGES)
    interfaces = NodeInterfaces(own=frozenset({NODE_IPV4, NODE_IPV6}), default=(NODE_IPV4, NODE_IPV6))
    catalog = Catalog(settings, node_facts(settings, None, interfaces))
    catalog.set_interfaces(interfaces)
    catalog.take(real_proxies.objects())
    return {
        it.key: RecordedServer(
            it.scheduler,
            it.persistence.timeout if it.persistence else 0,
            {(real.address, real.port): real.weight for real in it.real_servers},
        )
        for plan in catalog.plan_marked()
        if isinstance(plan, ServicePlan)
        for it in plan.virtual_servers
    }
