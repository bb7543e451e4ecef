"""The rules of iptables and ip6tables, in both variants: legacy and nft."""
