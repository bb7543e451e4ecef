"""Clients for the node's kernel: netlink, procfs, xtables, sysctls. Nothing here knows what a Service is."""
