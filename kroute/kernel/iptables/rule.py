"""Parses the text of a rule, as iptables-save prints it without "-A CHAIN"."""

import ipaddress
import shlex
import socket
from typing import NamedTuple

PROTOCOL_ALIASES = {"ipv6-icmp": "icmpv6"}
"""From iptables-save's name of a protocol to python-iptables'."""


class Parameter(NamedTuple):
    """`--name values`; `inverted` if a `!` is before it."""

    name: str
    values: tuple[str, ...]
    inverted: bool


class Extension(NamedTuple):
    """A match (`-m`) or a target (`-j`) with its parameters."""

    name: str
    parameters: tuple[Parameter, ...] = ()


class ParsedRule(NamedTuple):
    """A rule. Addresses, protocol and interfaces begin with `!` if inverted, and are "" if the rule has none."""

    source: str
    destination: str
    protocol: str
    in_interface: str
    out_interface: str
    matches: tuple[Extension, ...]
    target: Extension


_HEADER_OPTIONS = {"-s": "source", "-d": "destination", "-p": "protocol", "-i": "in_interface", "-o": "out_interface"}


class _Tokens:
    """The words of a rule, consumed from the left."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._words = shlex.split(text)
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._words)

    def take(self) -> str:
        if not self:
            raise ValueError(f"rule ends too early: {self.text}")
        self._position += 1
        return self._words[self._position - 1]

    def take_values(self) -> tuple[str, ...]:
        """The words up to the next option."""
        start = self._position
        while self and self._words[self._position] != "!" and not self._words[self._position].startswith("-"):
            self._position += 1
        return tuple(self._words[start : self._position])


def parse_rule(text: str, family: int) -> ParsedRule:
    """Parse a rule. Raises ValueError if it is malformed, or not of this address family (AF_INET, AF_INET6)."""
    tokens = _Tokens(text)
    header = dict.fromkeys(_HEADER_OPTIONS.values(), "")
    extensions: list[tuple[str, str, list[Parameter]]] = []
    inverted = False
    while tokens:
        word = tokens.take()
        if word == "!":
            inverted = True
            continue
        if word in _HEADER_OPTIONS:
            header[_HEADER_OPTIONS[word]] = ("!" if inverted else "") + _canonical(word, tokens.take(), family)
        elif word in {"-m", "-j"}:
            extensions.append((word, tokens.take(), []))
        elif word.startswith("--") and extensions:
            extensions[-1][2].append(Parameter(word[2:], tokens.take_values(), inverted))
        else:
            raise ValueError(f"cannot understand {word!r} in rule: {text}")
        inverted = False
    targets = [Extension(name, tuple(parameters)) for option, name, parameters in extensions if option == "-j"]
    if len(targets) != 1:
        raise ValueError(f"a rule has one target (-j): {text}")
    matches = tuple(Extension(name, tuple(parameters)) for option, name, parameters in extensions if option == "-m")
    return ParsedRule(**header, matches=matches, target=targets[0])


def comment(text: str) -> str:
    """The match that comments a rule. The text has at most 255 characters and no quotation marks."""
    return f'-m comment --comment "{text}"'


def set_names(text: str) -> list[str]:
    """The IP sets that a rule looks up."""
    words = shlex.split(text)
    return [words[index + 1] for index, word in enumerate(words[:-1]) if word == "--match-set"]


def _canonical(option: str, value: str, family: int) -> str:
    if option == "-p":
        return PROTOCOL_ALIASES.get(value, value)
    if option in {"-i", "-o"}:
        return value
    network = ipaddress.ip_network(value, strict=False)
    if network.version != (6 if family == socket.AF_INET6 else 4):
        raise ValueError(f"{value} is of the other address family")
    return str(network)
