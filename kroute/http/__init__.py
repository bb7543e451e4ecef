"""HTTP servers that anybody may call, and probes of others' ports: few connections, none for long."""
