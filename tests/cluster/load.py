"""`load.py URL FILE`: call the URL on a new connection again and again, until the file is there; then say how it went.

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


def call(url: urllib.parse.SplitResult) -> None:
    connection = http.client.HTTPConnection(str(url.hostname), url.port or 80, timeout=TIMEOUT)
    try:
        connection.request("GET", url.path or "/", headers={"Connection": "close"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
    finally:
        connection.close()


def main(address: str, end: Path) -> None:
    url, calls, failed, longest = urllib.parse.urlsplit(address), 0, [], 0.0
    while not end.exists():
        begun = time.monotonic()
        try:
            call(url)
        except (OSError, http.client.HTTPException) as error:
            failed.append(f"{time.strftime('%T')}, after {time.monotonic() - begun:.1f} s: {error!r}")
        calls += 1
        longest = max(longest, time.monotonic() - begun)
        time.sleep(PAUSE)
    print(json.dumps({"calls": calls, "failed": failed, "longest": longest}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
