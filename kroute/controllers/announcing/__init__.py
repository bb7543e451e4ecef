"""Announces VIPs by BGP through BIRD: `configuration` writes what BIRD reads, `controller` when."""
