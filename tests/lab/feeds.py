"""The ways on which objects get to the agents of the lab, and which of them a run goes (`KROUTE_FEED`).

Imports only the standard library: it is read before a lab exists.
"""

import os

MANIFESTS, API = "manifests", "api"


def wanted() -> list[str]:
    """Return the ways that `KROUTE_FEED` allows: the named one, or both, manifests first.

    Raises:
        ValueError: it names neither.
    """
    wish = os.environ.get("KROUTE_FEED") or "auto"
    if wish == "auto":
        return [MANIFESTS, API]
    if wish not in {MANIFESTS, API}:
        raise ValueError(f"KROUTE_FEED={wish}: use auto, {MANIFESTS} or {API}")
    return [wish]
