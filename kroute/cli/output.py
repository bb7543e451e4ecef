"""How commands print what they have found, for programs: JSON, or the same as YAML."""

import sys
from typing import Any

import msgspec


def write(found: Any, how: str) -> None:
    """Write a value to standard output as `json` or `yaml`, in the order of its fields."""
    if how == "json":
        text = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
    else:
        import yaml  # noqa: PLC0415 - few ask for it

        text = yaml.safe_dump(msgspec.json.decode(msgspec.json.encode(found)), sort_keys=False).encode()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
