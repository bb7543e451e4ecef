"""Hands the plans' set entries and the node's facts to the firewall, which masquerades and refuses packets."""
