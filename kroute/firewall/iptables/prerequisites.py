"""What a process and its kernel must offer before the backend can be used."""

MODULES = {"ip_set": "the sets that the masquerade rules look up"}
"""Kernel modules with what they are for; those of tables, matches and set types are loaded by the kernel when used."""

CAPABILITIES = {"NET_RAW": "libiptc reads and writes the rules by a raw socket"}
"""Capabilities beyond NET_ADMIN."""
