"""The firewall backend on iptables' legacy tables and ipset."""
