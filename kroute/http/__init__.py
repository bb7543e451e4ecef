"""HTTP servers that anybody may ask: few connections, none for long."""
