"""Virtual servers with their real servers, VIPs, UDP flows, and the sysctls and timeouts of IPVS."""
