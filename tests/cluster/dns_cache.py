"""`dns_cache.py UPSTREAM ADDRESS...`: stands in for node-local-dns: passes on queries at these addresses.

Held against kubernetes/dns, cmd/node-cache: it makes the interface with the addresses, has rules by which their packets
are not tracked (RULES in the environment, for nft), listens on these addresses alone, and removes it all at its end.
It keeps no answer, and asks the upstream Service by the query's protocol, where the real one prefers TCP. The name
`cache.test` exists here alone. The standard library is all it needs.
"""

import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading

OWN = b"\x05cache\x04test\x00"
INTERFACE = "nodelocaldns"


def own_answer(query: bytes) -> bytes | None:
    return query[:2] + struct.pack("!HHHHH", 0x8180, 1, 0, 0, 0) + query[12:] if OWN in query else None


class Datagram(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        query, sender = self.request
        answer = own_answer(query)
        if answer is None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as upstream:
                upstream.settimeout(5)
                upstream.connect((sys.argv[1], 53))
                upstream.send(query)
                answer = upstream.recv(4096)
        sender.sendto(answer, self.client_address)


class Stream(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while len(length := self.rfile.read(2)) == 2:
            query = self.rfile.read(*struct.unpack("!H", length))
            answer = own_answer(query)
            if answer is None:
                with socket.create_connection((sys.argv[1], 53), 5) as upstream, upstream.makefile("rb") as answers:
                    upstream.sendall(length + query)
                    answer = answers.read(*struct.unpack("!H", answers.read(2)))
            self.wfile.write(struct.pack("!H", len(answer)) + answer)


class Udp(socketserver.ThreadingUDPServer):
    daemon_threads = True


class Tcp(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def run(*command: str, content: str = "") -> None:
    subprocess.run(command, input=content, text=True, check=True)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of the first process, what is not blocked is ignored
    run("nft", "-f", "-", content=os.environ["RULES"])
    run("ip", "link", "add", INTERFACE, "type", "dummy")
    for address in sys.argv[2:]:
        run("ip", "address", "add", f"{address}/32", "dev", INTERFACE)
    run("ip", "link", "set", INTERFACE, "up")
    servers = [
        server for address in sys.argv[2:] for server in (Udp((address, 53), Datagram), Tcp((address, 53), Stream))
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    run("ip", "link", "delete", INTERFACE)
    run("nft", "delete", "table", "ip", "raw")
