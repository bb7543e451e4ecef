"""The kubeconfig file of a client of the stand-in."""

import json
from pathlib import Path


def write(path: Path, url: str, user: dict[str, str]) -> Path:
    """Write a file that leads to the server at `url`, with the fields of its user. Returns the path."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": user}],
    }
    path.write_text(json.dumps(content))
    return path
