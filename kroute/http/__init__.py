"""HTTP servers that anybody may call: few connections, none for long."""
