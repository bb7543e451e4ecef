"""What the process and its kernel must have before the backend can be used."""

from kroute.kernel.node_kernel import ClientName

MODULES = {"ip_set": "the sets that the masquerade rules look up"}
"""Kernel modules and their purpose. The kernel itself loads the modules of tables, matches and set types on use."""

CAPABILITIES = {"NET_RAW": "libiptc reads and writes the rules by a raw socket"}
"""Capabilities that are needed besides NET_ADMIN."""

CLIENTS: tuple[ClientName, ...] = ("ipset", "xtables")
"""The kernel clients that must be open."""
