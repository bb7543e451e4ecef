"""What a process and its kernel must offer before the backend can be used."""

from kroute.kernel.node_kernel import ClientName

MODULES = {"ip_set": "the sets that the masquerade rules look up"}
"""Kernel modules with what they are for; those of tables, matches and set types are loaded by the kernel when used."""

CAPABILITIES = {"NET_RAW": "libiptc reads and writes the rules by a raw socket"}
"""Capabilities beyond NET_ADMIN."""

CLIENTS: tuple[ClientName, ...] = ("ipset", "xtables")
"""The kernel clients that have to be open."""
