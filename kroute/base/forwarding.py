"""The methods by which the kernel's IPVS forwards packets to a real server, in ipvsadm's words."""

MASQUERADING = "Masq"
"""Replaces a packet's destination by the real server's address."""
DIRECT_ROUTING = "Route"
"""Sends a packet unchanged to the real server's MAC address. Answers bypass this machine."""
TUNNEL = "Tunnel"
"""Sends a packet unchanged to the real server in another one (IP in IP)."""
