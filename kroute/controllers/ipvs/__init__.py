"""The IPVS table and its sysctls, as service_proxy and the director write them."""
