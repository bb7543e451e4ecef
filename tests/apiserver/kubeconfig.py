"""The kubeconfig file of a client of the stand-in."""

import json
from pathlib import Path


def write(path: Path, url: str, user: dict[str, str], authority: Path | None = None) -> Path:
    """Write a file that leads to the server at `url`, with the fields of its user. Returns the path.

    `authority` is the file of the certificates that may have signed the server's.
    """
    cluster = {"server": url} if authority is None else {"server": url, "certificate-authority": str(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
    }
    path.write_text(json.dumps(content))
    return path
