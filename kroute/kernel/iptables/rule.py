"""Parses the text of a rule, as iptables-save prints it without "-A CHAIN"."""

import ipaddress
import shlex
import socket
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

PROTOCOL_ALIASES = {"ipv6-icmp": "icmpv6"}
"""Both are names of one protocol: each version of iptables-save has its own choice."""


class Parameter(NamedTuple):
    """`--name values`; `inverted` if a `!` is before it."""

    name: str
    values: tuple[str, ...]
    inverted: bool


class Extension(NamedTuple):
    """A match (`-m`) or a target (`-j`) with its parameters. One of `-g` has the parameter `goto`."""

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


def parse_rule(text: str, family: int) -> ParsedRule:
    """Parse a rule. Raises ValueError if it is malformed, or not of this address family (AF_INET, AF_INET6)."""
    words = deque(shlex.split(text))
    header = dict.fromkeys(_HEADER_OPTIONS.values(), "")
    extensions: list[tuple[str, str, list[Parameter]]] = []
    inverted = False
    try:
        while words:
            word = words.popleft()
            if word == "!":
                inverted = True
                continue
            if word in _HEADER_OPTIONS:
                header[_HEADER_OPTIONS[word]] = ("!" if inverted else "") + _canonical(word, words.popleft(), family)
            elif word in {"-m", "-j"}:
                extensions.append((word, words.popleft(), []))
            elif word == "-g":
                extensions.append(("-j", words.popleft(), [Parameter("goto", (), inverted)]))
            elif word.startswith("--") and extensions:
                extensions[-1][2].append(Parameter(word[2:], tuple(_values(words)), inverted))
            else:
                raise ValueError(f"cannot understand {word!r} in rule: {text}")
            inverted = False
    except IndexError:
        raise ValueError(f"rule ends too early: {text}") from None
    targets = [Extension(name, tuple(parameters)) for option, name, parameters in extensions if option == "-j"]
    if len(targets) != 1:
        raise ValueError(f"a rule has one target (-j or -g): {text}")
    matches = tuple(Extension(name, tuple(parameters)) for option, name, parameters in extensions if option == "-m")
    return ParsedRule(**header, matches=matches, target=targets[0])


WITHOUT_SYN = "-p tcp -m tcp --tcp-flags SYN NONE"
"""The match for TCP packets that begin no connection."""


def comment(text: str) -> str:
    """The match that comments a rule. The text has at most 255 characters and no quotation marks."""
    return f'-m comment --comment "{text}"'


def _values(words: deque[str]) -> Iterator[str]:
    """Take the words up to the next option."""
    while words and words[0] != "!" and not words[0].startswith("-"):
        yield words.popleft()


def _canonical(option: str, value: str, family: int) -> str:
    if option == "-p":
        return PROTOCOL_ALIASES.get(value, value)
    if option in {"-i", "-o"}:
        return value
    network = ipaddress.ip_network(value, strict=False)
    if network.version != (6 if family == socket.AF_INET6 else 4):
        raise ValueError(f"{value} is of the other address family")
    return str(network) if network.prefixlen else ""  # which iptables-save does not print
