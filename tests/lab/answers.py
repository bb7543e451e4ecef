"""The output of kroute's commands on a node of the lab."""

import json
from typing import Any

from tests.lab.cluster import Node


async def ask_json(node: Node, *argv: str) -> tuple[int, Any]:
    """Run `kroute ARGV... -o json` on the node. Returns its exit code and the parsed output (None: no JSON)."""
    process = await node.kroute(*argv, "-o", "json")
    code = await process.wait()
    text = process.log.read_text()
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    try:
        return code, json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        raise AssertionError(f"kroute {' '.join(argv)} ended with {code} and printed no JSON:\n{text}") from None
