"""Speak to the node: netlink, procfs, xtables, sysctl. Nothing here knows what a Service is."""
