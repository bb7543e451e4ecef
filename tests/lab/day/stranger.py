"""Another program on a node: it writes its own virtual servers, rules and sets, and knows what they should be."""

import random

from tests.lab.cluster import Node
from tests.lab.firewall import has_nf_tables, tool

ADDRESS = "203.0.113.7"
TABLE = tool("IPv4")


class Stranger:
    """One on each node. `check` finds what has become of its things. `leave` empties its chain and its set."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._servers: dict[str, dict[str, int]] = {}
        self._rules: list[str] = []
        self._elements: set[str] = set()
        node.namespace.ip(
            f"link add foreign0 type dummy\naddress add {ADDRESS}/32 dev foreign0\nlink set foreign0 up\n"
        )
        node.run(TABLE, "-w", "-t", "nat", "-N", "FOREIGN")
        node.run(TABLE, "-w", "-t", "nat", "-I", "PREROUTING", "-j", "FOREIGN")
        if has_nf_tables():
            node.run("nft", "add table ip foreign; add set ip foreign cluster-ip { type ipv4_addr; }")
        else:
            node.run("ipset", "create", "FOREIGN", "hash:ip")

    def write(self, dice: random.Random) -> None:
        """Add or delete one thing."""
        number = dice.randint(1, 9)
        source = f"198.51.100.{number}"
        match dice.choice(["server", "rule", "element"]):
            case "server":
                self._write_server(str(1000 + number), source, number)
            case "rule" if source in self._rules:
                self._rules.remove(source)
                self._node.run(TABLE, "-w", "-t", "nat", "-D", "FOREIGN", "-s", source, "-j", "RETURN")
            case "rule":
                self._rules.append(source)
                self._node.run(TABLE, "-w", "-t", "nat", "-A", "FOREIGN", "-s", source, "-j", "RETURN")
            case _:
                self._write_element(source)

    def check(self) -> list[str]:
        """A sentence for each kind of things that somebody else has changed. What is there now counts from now on."""
        listed = self._node.run(TABLE, "-w", "-t", "nat", "-S", "FOREIGN").splitlines()[1:]
        rules = [line.split()[3].removesuffix("/32") for line in listed]
        jumps = self._node.run(TABLE, "-w", "-t", "nat", "-S", "PREROUTING").count("-j FOREIGN")
        found = (self._listed_servers(), rules, self._listed_elements(), jumps)
        wanted = (self._servers, self._rules, self._elements, 1)
        self._servers, self._rules, self._elements, _ = found
        return [
            f"{self._node.name}: a stranger had {w}, and has {f}" for f, w in zip(found, wanted, strict=True) if f != w
        ]

    def leave(self) -> None:
        """Delete what it has written since it came."""
        for port in self._listed_servers():
            self._node.run("ipvsadm", "-D", "-t", f"{ADDRESS}:{port}")
        self._node.run(TABLE, "-w", "-t", "nat", "-F", "FOREIGN")
        self._node.run(
            *(("nft", "flush set ip foreign cluster-ip") if has_nf_tables() else ("ipset", "flush", "FOREIGN"))
        )

    def _write_server(self, port: str, address: str, weight: int) -> None:
        at, real = ("-t", f"{ADDRESS}:{port}"), f"{address}:{port}"  # with direct routing the port stays
        if port not in self._servers:
            self._servers[port] = {}
            self._node.run("ipvsadm", "-A", *at, "-s", "wlc", "-p", "300")
        elif real not in self._servers[port]:
            self._servers[port][real] = weight
            self._node.run("ipvsadm", "-a", *at, "-r", real, "-g", "-w", str(weight))
        else:
            del self._servers[port]
            self._node.run("ipvsadm", "-D", *at)

    def _write_element(self, element: str) -> None:
        verb = "delete" if element in self._elements else "add"
        self._elements ^= {element}
        if has_nf_tables():
            self._node.run("nft", f"{verb} element ip foreign cluster-ip {{ {element} }}")
        else:
            self._node.run("ipset", verb.removesuffix("ete"), "FOREIGN", element)

    def _listed_servers(self) -> dict[str, dict[str, int]]:
        """The weights of its real servers, by the port of the virtual server."""
        rows = {key: row for key, row in self._node.ipvs().items() if key.startswith(f"TCP {ADDRESS}:10")}
        return {
            key.rpartition(":")[2]: {at: server.weight for at, server in row.real_servers.items()}
            for key, row in rows.items()
        }

    def _listed_elements(self) -> set[str]:
        if has_nf_tables():
            listed = self._node.run("nft", "list set ip foreign cluster-ip").partition("elements = {")[2]
            return {word.strip(" ,}\n\t") for word in listed.split()} - {""}
        return {
            line.split()[2] for line in self._node.run("ipset", "save", "FOREIGN").splitlines() if line[:3] == "add"
        }
