"""The rules of iptables and ip6tables: by python-iptables, and by the iptables package's tools."""
