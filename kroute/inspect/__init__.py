"""What the agent knows, what the kernel has, and what becomes of a packet: the answers behind the commands."""
