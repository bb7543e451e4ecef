"""The rules of iptables and ip6tables: ours with python-iptables, those of others with the iptables package's tools."""
