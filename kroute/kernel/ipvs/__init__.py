"""IPVS: virtual servers, real servers, connections, firewall marks, counters, synchronization daemons."""
