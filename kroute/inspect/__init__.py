"""The queries behind the commands: the agent's plans, the kernel's state, and the way of a packet."""
