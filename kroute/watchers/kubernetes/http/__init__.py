"""An HTTP/1.1 client for one server: h11 reads and writes the protocol, asyncio the connections."""
