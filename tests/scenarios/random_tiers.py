"""Random ClusterNetworkPolicies beside the random objects of `random_policies.py`."""

from ipaddress import ip_network

from tests.lab.objects import Object, identity
from tests.lab.reachability import HOMES, PODS, PORTS, PROTOCOLS
from tests.scenarios.random_policies import LABELS, PORT_NAMES, RandomPolicies
from tests.unit.planning.policies.cluster import cluster_policy

TIERS, ACTIONS = ("Admin", "Admin", "Baseline"), ("Accept", "Deny", "Pass")


class RandomTiers(RandomPolicies):
    """Draws by a seed. `objects` have up to four policies of the cluster, too."""

    def draw(self) -> None:
        super().draw()
        for name in self._some("abcd", 1, 4):
            self.edit_cluster(name)

    def edit_cluster(self, name: str) -> None:
        """Make or change a policy of the cluster."""
        rules = {"ingress": self._in_order("from"), "egress": self._in_order("to")}
        written = {direction: of_direction for direction, of_direction in rules.items() if self._is(70)}
        tier, priority = self._random.choice(TIERS), self._random.randrange(3)
        item = cluster_policy(name, tier=tier, priority=priority, subject=self._subject(), **written)
        self.objects[identity(item)] = item

    def _in_order(self, field: str) -> list[Object]:
        return [self._acting(field) for _ in range(self._random.randint(1, 4))]

    def _acting(self, field: str) -> Object:
        """A rule. The name of a port and a network are not in one: that is not understood."""
        peers = [
            self._networks() if field == "to" and self._is(35) else self._subject()
            for _ in range(self._random.randint(1, 2))
        ]
        are_named = not any("networks" in peer for peer in peers)
        protocols = [self._protocol(are_named=are_named) for _ in range(self._random.choice([0, 0, 1, 1, 2]))]
        return {"action": self._random.choice(ACTIONS), field: peers, "protocols": protocols}

    def _subject(self) -> Object:
        namespaces = self._of_namespaces()
        pods = {"namespaceSelector": namespaces, "podSelector": self._selector(LABELS)}
        return self._random.choice([{"namespaces": namespaces}, {"pods": pods}, {"pods": pods}])

    def _networks(self) -> Object:
        """Networks around pods, of which one may be in another one."""
        found = set()
        for pod in self._some(PODS, 1, 3):
            address = self._random.choice(HOMES[pod][1:])
            longest = 128 if ":" in address else 32
            length = longest - self._random.choice([0, 1, 2, 3, 8, longest])
            found.add(str(ip_network(f"{address}/{length}", strict=False)))
        return {"networks": sorted(found)}

    def _protocol(self, *, are_named: bool) -> Object:
        if are_named and self._is(30):
            return {"destinationNamedPort": self._random.choice(PORT_NAMES)}
        of_range = {"range": {"start": self._random.choice([1, 80]), "end": self._random.choice([80, 81, 65535])}}
        port = self._random.choice([{"number": self._random.choice([*PORTS, 79])}, of_range])
        return {self._random.choice(list(PROTOCOLS)).lower(): {"destinationPort": port}}
