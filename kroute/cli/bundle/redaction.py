"""Remove secrets from texts: those that this node is known to have, and whatever looks like one.

The parts of a bundle are chosen so that they hold no secrets: settings name only files, and objects keep only the
annotations that kroute reads. This is the second line, since a log line or an error may repeat anything.
"""

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from kroute.settings import Settings

REMOVED = "[removed]"
SHORTEST = 6
"""Characters; a shorter value is in too many other words to be removed wherever it is."""
LONGEST_FILE = 1 << 20
"""Bytes of a file of credentials that are read."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FILES = frozenset({"tokenFile", "client-key", "client-certificate", "certificate-authority"})
"""The fields of a kubeconfig that name a file with a secret or a certificate."""
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|credential|private|api_?key|auth")
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"),  # a JSON Web Token
    re.compile(r"(?i)(?<=\bbearer )[^\s\"'\\]{4,}|(?<=\bbasic )[\w+/=]{6,}"),
    re.compile(r"(?<=://)[^/@\s\"']+(?=@)"),
    re.compile(
        r"(?i)(?<![\w-])(?:[\w-]*(?:token|passw(?:or)?d|secret|api[-_]?key|credentials?|authorization|"
        r"(?:client|certificate)-[\w-]*data))\\?[\"']?\s*[:=]\s*\\?[\"']?(?!null|true|false|\[)"
        r"(?P<value>[^\s\"'\\,}]{4,})"
    ),
)
"""PEM blocks, tokens, credentials in headers and URLs, and values that are named like secrets."""


class Redaction:
    """Removes `values`, and what looks like a secret. `count` says how many places were changed."""

    def __init__(self, values: Iterable[str]) -> None:
        known = {it for value in values for it in (value, value.replace("\n", "\\n")) if len(it) >= SHORTEST}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None
        self.count = 0

    def clean(self, text: str) -> str:
        """The text without secrets. What is JSON stays JSON."""
        if self._known is not None:
            text = self._replaced(self._known, text)
        for pattern in _PATTERNS:
            text = self._replaced(pattern, text)
        return text

    def _replaced(self, pattern: re.Pattern[str], text: str) -> str:
        def removed(match: re.Match[str]) -> str:
            value = match.groupdict().get("value")
            return match.group()[: -len(value)] + REMOVED if value else REMOVED

        text, count = pattern.subn(removed, text)
        self.count += count
        return text


def secrets_of(settings: Settings, environment: Mapping[str, str] = os.environ) -> set[str]:
    """The secrets that this node is known to have: of the kubeconfig, the service account and the environment."""
    found = {value for name, value in environment.items() if _is_secret(name)}
    for name in ("token", "ca.crt"):
        found.update(_lines_of(SERVICE_ACCOUNT / name))
    if settings.kubeconfig is not None:
        found.update(_of_kubeconfig(settings.kubeconfig))
    return {it for it in found if len(it) >= SHORTEST}


def _is_secret(variable: str) -> bool:
    """Whether a variable of this name may hold a secret. kroute's own settings hold none."""
    return not variable.startswith("KROUTE_") and _SECRET_NAME.search(variable) is not None


def _of_kubeconfig(path: Path) -> Iterator[str]:
    """Every value of the users, and of the clusters every certificate; with what the files hold that they name."""
    try:
        content = yaml.safe_load(_read(path))
    except yaml.YAMLError:
        yield from _lines(_read(path))  # nothing of it is to be seen
        return
    if not isinstance(content, dict):
        return
    for name, value in _scalars(content):
        if name in _FILES:
            yield from _lines_of(path.parent / value)
        elif name.endswith("-data"):
            yield from _decoded(value)
    for user in content.get("users") or ():
        yield from (value for name, value in _scalars(user) if name not in {"name", *_FILES})


def _scalars(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a document, with the name of its field."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _scalars(each, str(key))
        case list():
            for each in value:
                yield from _scalars(each, name)
        case str():
            yield name, value
        case _:
            pass


def _decoded(value: str) -> Iterator[str]:
    yield value
    with suppress(binascii.Error, ValueError):
        yield from _lines(base64.b64decode(value, validate=True).decode(errors="replace"))


def _lines_of(path: Path) -> list[str]:
    return _lines(_read(path))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_FILE).decode(errors="replace")
    except OSError:
        return ""


def _lines(text: str) -> list[str]:
    return [stripped for line in text.splitlines() if len(stripped := line.strip()) >= SHORTEST]
