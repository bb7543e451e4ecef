"""Netlink: sockets, messages, generic netlink, the constants of rtnetlink."""
