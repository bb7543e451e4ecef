"""Virtual servers, their real servers, VIP addresses, UDP flows, and IPVS's sysctls."""
