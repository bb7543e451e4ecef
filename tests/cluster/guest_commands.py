"""Shell commands for a machine of the cluster, which come from the wire: one for each connection, run as root.

The answer is what the command writes, a byte 0, and its exit code. Without arguments this is the server, in the
machine; `guest_commands.py ADDRESS COMMAND` asks it. Only the standard library is needed.
"""

import contextlib
import socket
import subprocess
import sys
import threading

PORT = 999
ANSWERS_WITHIN = 3600.0
"""Seconds that only a command takes that hangs."""


def answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        command = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        shell = ["bash", "-c", command]
        done = subprocess.run(
            shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        connection.sendall(done.stdout + b"\0%d" % done.returncode)


def ask(address: str, command: str) -> tuple[int, str]:
    """Run a command there. Returns its exit code and its output."""
    with socket.create_connection((address, PORT), ANSWERS_WITHIN) as connection:
        connection.sendall(command.encode())
        connection.shutdown(socket.SHUT_WR)
        output, _, code = b"".join(iter(lambda: connection.recv(65536), b"")).rpartition(b"\0")
    return int(code or b"255"), output.decode(errors="replace")


def serve() -> None:
    with socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=[connection], daemon=True).start()


if __name__ == "__main__":
    if not sys.argv[1:]:
        serve()
    code, said = ask(*sys.argv[1:])
    print(said, end="")
    sys.exit(code)
