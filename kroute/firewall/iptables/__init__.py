"""The firewall as iptables' legacy tables and ipset sets."""
