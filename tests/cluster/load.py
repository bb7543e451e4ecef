"""`load.py URL FILE [kept]`: call the URL again and again, until the file is there; then say how it went.

Each call is on a new connection; with `kept` all are on one, and the first that fails is the last one.

Runs beside the nodes and in them: in a node itself, or in the network namespace of one of its pods.
Only the standard library is needed. The answer is a JSON object: `calls`, `failed` with a text for each failed call,
and `longest` in seconds.
"""

import http.client
import json
import sys
import time
import urllib.parse
from pathlib import Path

TIMEOUT = 15.0
"""Seconds that only a call takes that is lost: a machine may stand still for some."""
PAUSE = 0.03
PAUSE_OF_KEPT = 0.5
"""Seconds between calls."""


def call(connection: http.client.HTTPConnection, path: str, *, kept: bool) -> None:
    connection.request("GET", path, headers={} if kept else {"Connection": "close"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise OSError(f"status {answer.status}")
    if not kept:
        connection.close()
    elif connection.sock is None:
        raise OSError("the server has closed the connection")


def main(address: str, end: Path, *, kept: bool) -> None:
    url, calls, failed, longest = urllib.parse.urlsplit(address), 0, list[str](), 0.0
    connection = http.client.HTTPConnection(str(url.hostname), url.port or 80, timeout=TIMEOUT)
    while not end.exists() and not (kept and failed):
        begun = time.monotonic()
        try:
            call(connection, url.path or "/", kept=kept)
        except (OSError, http.client.HTTPException) as error:
            failed.append(f"{time.strftime('%T')}, after {time.monotonic() - begun:.1f} s: {error!r}")
            connection.close()
        calls += 1
        longest = max(longest, time.monotonic() - begun)
        time.sleep(PAUSE_OF_KEPT if kept else PAUSE)
    print(json.dumps({"calls": calls, "failed": failed, "longest": longest}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), kept=sys.argv[3:] == ["kept"])
