"""What the process and its kernel must have before the backend can be used."""

from kroute.kernel.node_kernel import ClientName

MODULES = {"nf_tables": "the tables with the masquerade rules and their sets"}
"""Kernel modules and their purpose. The kernel itself loads the modules of chains, matches and set types on use."""

CAPABILITIES: dict[str, str] = {}
"""Capabilities that are needed besides NET_ADMIN."""

CLIENTS: tuple[ClientName, ...] = ("nftables",)
"""The kernel clients that must be open."""
