"""Netlink: sockets, messages, generic netlink, rtnetlink's numbers."""
