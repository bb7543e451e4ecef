"""Remove secrets from texts: those that this node is known to have, and whatever looks like one.

The parts of a bundle are chosen so that they hold no secrets: settings name only files, and objects keep only the
annotations that kroute reads. This is the second line, since a log line or an error may repeat anything.

What is JSON is cleaned string by string, so that whatever somebody writes into an annotation changes only that string.
The time is linear in the length of the text: no pattern begins at more than one place of a word, and none goes back.
"""

import base64
import binascii
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kroute.settings import Settings

REMOVED = "[removed]"
SHORTEST = 6
"""Characters; a shorter value is in too many other words to be removed wherever it is."""
LONGEST_SECRET = 1 << 20
"""Bytes. As much of a file of credentials is read."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FILES = frozenset({"tokenFile", "client-key", "client-certificate", "certificate-authority"})
"""The fields of a kubeconfig that name a file with a secret or a certificate."""
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|credential|private|api_?key|auth")
_SECRET_ENDS = (
    *("token", "passwd", "password", "secret", "apikey", "api-key", "api_key", "credential", "credentials"),
    "authorization",
)
"""How the name of a secret ends, in lower case."""
_CREDENTIAL = re.compile(r"(?i)(?<=\bbearer )[^\s\"'\\]{4,}+|(?<=\bbasic )[\w+/=]{6,}+|(?<=://)[^/@\s\"']++(?=@)")
_WORD = re.compile(r"[\w.-]++")
_TOKEN = re.compile(r"\beyJ")
SHORTEST_TOKEN = 11
"""Characters of the first part of a JSON Web Token."""
_NAME = re.compile(r"(?<![\w-])([\w-]++)\\?[\"']?\s*+[:=]\s*+\\?[\"']?")
_VALUE = re.compile(r"(?!null|true|false|\[)[^\s\"'\\,}]{4,}+")
_PEM_MARK = re.compile(r"-----(?P<what>BEGIN|END) [A-Z0-9 ]{1,64}-----(?P<rest>(?:[\w+/=]|\\++[nr])*+)")
_PEM_HEADER = re.compile(r"\s*+(?:(?:Proc-Type|DEK-Info): .*+)?\s*+")
_PEM_WORD = re.compile(r"(?<!\S)([A-Za-z0-9+/]++={0,2})\s*+$")
"""The last word of a line, if it may be a key's: lines of a log have others before it."""
SHORTEST_PEM_WORD = 16
"""Characters; one shorter word is a key's if it follows such a one."""
_OF_A_PEER = re.compile(r'^  password "(.*)";$', re.MULTILINE)
"""What kroute writes for BIRD."""
_WORK = 1 << 18
"""Characters that are searched before the time is looked at."""


class Redaction:
    """Removes `values`, and what looks like a secret. `count` says how many places were changed."""

    def __init__(self, values: Iterable[str]) -> None:
        known = {text for value in values for text in (value, _escaped(value)) if len(text) >= SHORTEST}
        self._known = sorted(known, key=len, reverse=True)
        self.count = 0
        self._searched = 0
        self._until = math.inf

    def clean(self, text: str, until: float = math.inf) -> str:
        """The text without secrets. What is JSON stays JSON, as a whole or line by line.

        Raises TimeoutError: it took until this moment of the monotonic clock.
        """
        self._until = until
        for secret in self._known:
            if secret in text:
                self.count += text.count(secret)
                text = text.replace(secret, REMOVED)
        if (document := self._document(text)) is not None:
            return document
        cleaned: list[str] = []
        plain: list[str] = []
        for line in text.splitlines(keepends=True):
            if (document := self._document(line)) is None:
                plain.append(line)
            else:
                cleaned += (self._plain("".join(plain)), document)
                plain.clear()
        return "".join([*cleaned, self._plain("".join(plain))])

    def _spend(self, characters: int) -> None:
        self._searched += characters
        if self._searched > _WORK:
            self._searched = 0
            if time.monotonic() > self._until:
                raise TimeoutError

    def _document(self, text: str) -> str | None:
        """A text that is a JSON object or list, cleaned; None if it is none. Without secrets it stays as it is."""
        if text.lstrip()[:1] not in {"{", "["}:
            return None
        before = self.count
        try:
            value = self._value(msgspec.json.decode(text), "")
        except (ValueError, RecursionError):
            self.count = before
            return None
        if self.count == before:
            return text
        encoded = msgspec.json.encode(value)
        body = text.rstrip()
        return (msgspec.json.format(encoded) if "\n" in body else encoded).decode() + text[len(body) :]

    def _value(self, value: Any, name: str) -> Any:
        match value:
            case dict():
                return {self._plain(key): self._value(each, key) for key, each in value.items()}
            case list():
                return [self._value(each, name) for each in value]
            case str() | int() | float() if (
                not isinstance(value, bool) and _names_secret(name) and len(str(value)) >= 4
            ):
                self.count += 1
                return REMOVED
            case str():
                return self._plain(value)
        return value

    def _plain(self, text: str) -> str:
        """A text without secrets; what looks like the beginning of one removes no more than one would have."""
        for spans in (_keys, _credentials, _tokens, _named):
            self._spend(len(text) + 1)
            text = self._without(spans(text), text)
        return text

    def _without(self, spans: Iterable[tuple[int, int]], text: str) -> str:
        """The text with REMOVED in place of these spans, which are in order."""
        kept: list[str] = []
        position = 0
        for begin, end in spans:
            kept += (text[position:begin], REMOVED)
            position = end
            self.count += 1
        return "".join([*kept, text[position:]]) if kept else text


def _escaped(value: str) -> str:
    """The value as it stands in JSON."""
    return msgspec.json.encode(value).decode()[1:-1]


def _names_secret(name: str) -> bool:
    name = name.lower()
    is_data = name.endswith("data") and ("client-" in name or "certificate-" in name)  # of a kubeconfig
    return is_data or name.endswith(_SECRET_ENDS)


def _credentials(text: str) -> Iterator[tuple[int, int]]:
    """Credentials in headers and URLs."""
    return (match.span() for match in _CREDENTIAL.finditer(text))


def _named(text: str) -> Iterator[tuple[int, int]]:
    """Values that are named like secrets."""
    position = 0
    while name := _NAME.search(text, position):
        position = name.end()
        if _names_secret(name.group(1)) and (value := _VALUE.match(text, position)):
            yield value.span()
            position = value.end()


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """JSON Web Tokens: words of two or three parts, of which the first is the beginning of a JSON object."""
    if "eyJ" not in text:
        return
    for word in _WORD.finditer(text):
        position = word.start()
        parts = word.group().split(".")
        for part, following in pairwise(parts):
            found = _TOKEN.search(part)
            if found and len(part) - found.start() >= SHORTEST_TOKEN and following:
                yield position + found.start(), word.end()
                break
            position += len(part) + 1


def _keys(text: str) -> Iterator[tuple[int, int]]:
    """PEM blocks. Of one without an end: what follows, as long as it looks like a key's lines."""
    if "-----BEGIN " not in text:
        return
    position, follows, is_within = 0, False, False
    for line in text.splitlines(keepends=True):
        begun: re.Match[str] | None = None
        for mark in _PEM_MARK.finditer(line):
            if mark["what"] == "BEGIN":
                if begun:
                    yield position + begun.start(), position + begun.end()
                begun = mark
            elif begun or follows:
                yield position + (begun or mark).start(), position + mark.start("rest")
                begun, follows = None, False
        if begun:
            yield position + begun.start(), position + begun.end()
            follows, is_within = not line[begun.end() :].strip(), False
        elif follows:
            word = _PEM_WORD.search(line)
            if word and (len(word[1]) >= SHORTEST_PEM_WORD or (is_within and len(word[1]) % 4 == 0)):
                yield position + word.start(1), position + word.end(1)
                follows = is_within = len(word[1]) >= SHORTEST_PEM_WORD
            else:
                follows = not is_within and _PEM_HEADER.fullmatch(line) is not None
        position += len(line)


def secrets_of(settings: Settings, environment: Mapping[str, str] = os.environ) -> set[str]:
    """The secrets that this node is known to have: of the kubeconfig, the service account, the environment and BIRD."""
    others = {name: value for name, value in environment.items() if not name.startswith("KROUTE_")}  # they hold none
    found = {value for name, value in others.items() if _SECRET_NAME.search(name)}
    for name in ("token", "ca.crt"):
        found.update(_lines(_read(SERVICE_ACCOUNT / name)))
    if settings.kubeconfig is not None:
        found.update(_of_kubeconfig(settings.kubeconfig))
    found.update(_OF_A_PEER.findall(_read(settings.bird_configuration)))
    return {value for value in found if len(value) >= SHORTEST}


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
            yield from _lines(_read(path.parent / value))
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


def _decoded(value: str) -> Iterator[str]:
    yield value
    with suppress(binascii.Error, ValueError):
        yield from _lines(base64.b64decode(value, validate=True).decode(errors="replace"))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_SECRET).decode(errors="replace")
    except OSError:
        return ""


def _lines(text: str) -> list[str]:
    return [stripped for line in text.splitlines() if len(stripped := line.strip()) >= SHORTEST]
