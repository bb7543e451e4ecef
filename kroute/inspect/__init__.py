"""The answers behind the commands: the agent's plans, the kernel's state, and the trace of a packet."""
