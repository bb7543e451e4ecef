"""IPVS: virtual servers, real servers, connections, marks, counters, the sync daemons."""
