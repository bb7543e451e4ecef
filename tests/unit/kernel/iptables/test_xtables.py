"""What the iptables tools are told to write, from what they print, and how often they are asked.

The tools themselves are in the lab: tests/kernel/test_xtables.py.
"""

import socket
from collections.abc import Sequence

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables import tools, xtables
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.iptables.xtables import TableRules, Xtables, compare
from kroute.kernel.nftables.client import Nftables

RULES = TableRules(
    "filter",
    {"KROUTE-FORWARD": ['-m comment --comment "two words" -j ACCEPT'], "KROUTE-INPUT": ["-j RETURN"]},
    [
        ("FORWARD", '-m comment --comment "kroute: jump" -j KROUTE-FORWARD'),
        ("INPUT", "-j KROUTE-INPUT"),
        ("INPUT", "-p tcp -j KROUTE-INPUT"),
    ],
    frozenset({"FORWARD"}),
)
JUMP = f"-A FORWARD {RULES.jumps[0][1]}"
JUMPS = [f"-A INPUT {jump}" for _, jump in RULES.jumps[1:]]
RIGHT = [f"-A {chain} {rule}" for chain, [rule] in RULES.chains.items()]
CHAINS = [":INPUT ACCEPT [0:0]", ":FORWARD DROP [0:0]"]
CHAINS += [f":{name} - [0:0]" for name in ("DOCKER-USER", "cali-INPUT", *RULES.chains)]


def saved(*rules: str, chains: Sequence[str] = CHAINS) -> str:
    return "\n".join(["*filter", *chains, *rules, "COMMIT", ""])


def wrong(*rules: str, chains: Sequence[str] = CHAINS) -> tuple[list[str], list[str]]:
    return compare(saved(*rules, chains=chains), RULES, socket.AF_INET)


@pytest.mark.parametrize(
    "rules",
    [
        (JUMP, *JUMPS, *RIGHT),
        ("-A FORWARD -j DOCKER-USER", JUMP, *JUMPS, *RIGHT),
        (JUMP, "-A INPUT -j cali-INPUT", *JUMPS, *RIGHT),
        (JUMP, *JUMPS, '-A INPUT -m comment --comment "a line', 'break" -j ACCEPT', *RIGHT),
    ],
    ids=["alone", "behind a neighbour's jump", "behind Calico's jump", "before a comment with a line break"],
)
def test_what_is_right_is_not_written(rules: tuple[str, ...]) -> None:
    assert wrong(*rules) == ([], [])


def test_rules_with_the_text_that_was_written_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(xtables, "parse_rule", lambda text, _family: parsed.append(text))
    assert wrong(JUMP, *JUMPS, *RIGHT) == ([], [])
    assert parsed == []


def test_an_empty_table_gets_everything() -> None:
    found, lines = compare("", RULES, socket.AF_INET)
    assert found == [
        "chain KROUTE-FORWARD is missing", "chain KROUTE-INPUT is missing",
        "the jumps of FORWARD are not first", "the jumps of INPUT are not first",
    ]  # fmt: skip
    jumps = [f"-I FORWARD 1 {RULES.jumps[0][1]}", "-I INPUT 1 -j KROUTE-INPUT", "-I INPUT 2 -p tcp -j KROUTE-INPUT"]
    assert lines == [":KROUTE-FORWARD - [0:0]", ":KROUTE-INPUT - [0:0]", *jumps, *RIGHT]


@pytest.mark.parametrize(
    ("rules", "found", "lines"),
    [
        ((*JUMPS, *RIGHT), "the jumps of FORWARD are not first", [f"-I FORWARD 1 {JUMP[11:]}"]),
        (
            ("-A FORWARD -j DROP", JUMP, *JUMPS, *RIGHT),
            "the jumps of FORWARD are not first",
            [f"-D {JUMP[3:]}", f"-I FORWARD 1 {JUMP[11:]}"],
        ),
        (
            ("-A INPUT -j cali-INPUT", "-A INPUT -j DOCKER-USER", *JUMPS, JUMP, *RIGHT),
            "the jumps of INPUT are not first",
            [*(f"-D {jump[3:]}" for jump in JUMPS), "-I INPUT 2 -j KROUTE-INPUT", "-I INPUT 3 -p tcp -j KROUTE-INPUT"],
        ),
        (
            (*JUMPS, "-A INPUT -g KROUTE-INPUT", JUMP, *RIGHT),
            "the jumps of INPUT are not first",
            [
                *(f"-D {jump[3:]}" for jump in (*JUMPS, "-A INPUT -g KROUTE-INPUT")),
                "-I INPUT 1 -j KROUTE-INPUT", "-I INPUT 2 -p tcp -j KROUTE-INPUT",
            ],
        ),
        ((JUMP, *JUMPS, RIGHT[1]), "chain KROUTE-FORWARD has other rules", [":KROUTE-FORWARD - [0:0]", RIGHT[0]]),
        ((JUMP, *JUMPS, *RIGHT, RIGHT[1]), "chain KROUTE-INPUT has other rules", [":KROUTE-INPUT - [0:0]", RIGHT[1]]),
        (
            (JUMP, *JUMPS, *RIGHT, "-A KROUTE-INPUT -f -j ACCEPT"),
            "chain KROUTE-INPUT has other rules",
            [":KROUTE-INPUT - [0:0]", RIGHT[1]],
        ),
    ],
    ids=[
        "no jump", "behind a rule that drops", "between Calico's jump and another", "one jump more", "emptied",
        "a rule more", "a rule that kroute has no word for",
    ],
)  # fmt: skip
def test_only_what_is_wrong_is_written(rules: tuple[str, ...], found: str, lines: list[str]) -> None:
    assert wrong(*rules) == ([found], lines)


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("-p ipv6-icmp -j RETURN", "-p icmpv6 -j RETURN"),
        ("-s ::/0 -d fd00::/64 -j RETURN", "-d fd00::/64 -j RETURN"),
        (
            '-m mark --mark 1/1 -m comment --comment "x" -j DROP',
            "-m comment --comment x -m mark --mark 1/1 -j DROP",
        ),
    ],
)
def test_versions_of_the_tools_may_print_a_rule_in_other_words(given: str, printed: str) -> None:
    rules = TableRules("filter", {"KROUTE-INPUT": [given]}, [])
    assert compare(saved(f"-A KROUTE-INPUT {printed}"), rules, socket.AF_INET6) == ([], [])


class Tools:
    """The tools of one table, which has this digest; how often they were called, and with what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rules: str) -> None:
        self.saved = saved(*rules)
        self.digest = 1
        self.calls: list[list[str]] = []
        monkeypatch.setattr(tools, "legacy_tables", lambda _family: ["filter"])
        monkeypatch.setattr(tools, "run", self._run)
        monkeypatch.setattr(xtables, "read_table", lambda *_table: b"")
        monkeypatch.setattr(xtables, "table_digest", lambda *_listing: self.digest)

    async def _run(self, argv: Sequence[str], stdin: str = "") -> str:
        self.calls.append([*argv, *stdin.splitlines()[1:-1]])
        return self.saved


async def test_a_change_of_one_rule_is_one_restore_that_waits_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Tools(monkeypatch, JUMP, *JUMPS, RIGHT[0])
    found = await Xtables(Variant(socket.AF_INET6, "legacy")).ensure(RULES)
    assert found == ["chain KROUTE-INPUT has other rules"]
    assert node.calls == [
        ["ip6tables-legacy-save", "-t", "filter"],
        ["ip6tables-legacy-restore", "--noflush", "-w", "2", ":KROUTE-INPUT - [0:0]", RIGHT[1]],
    ]


async def test_a_table_that_was_right_is_read_again_only_after_a_change_and_for_other_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Tools(monkeypatch, JUMP, *JUMPS, *RIGHT)
    client = Xtables(Variant(socket.AF_INET, "legacy"))
    for digest in (1, 1, 2, 2):
        node.digest = digest
        assert await client.ensure(RULES) == []
    assert len(node.calls) == 2
    assert await client.differences(RULES._replace(jumps=RULES.jumps[:2])) == ["the jumps of INPUT are not first"]
    assert len(node.calls) == 3


async def test_a_tool_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(*_: object) -> None:
        return None

    node = Tools(monkeypatch)
    monkeypatch.setattr(tools, "run", missing)
    with pytest.raises(KernelError, match=r"^iptables-legacy-save is not installed; install the package iptables$"):
        await Xtables(Variant(socket.AF_INET, "legacy")).differences(RULES)
    assert node.calls == []


async def test_no_tool_is_asked_for_a_table_without_chains_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Tools(monkeypatch)
    monkeypatch.setattr(xtables, "legacy_chains", lambda *_table: ["DOCKER-USER"])
    client = Xtables(Variant(socket.AF_INET, "legacy"))
    assert (await client.remove("filter", "KROUTE-"), await client.remove("nat", "KROUTE-")) == ([], [])
    assert node.calls == []


async def test_a_table_that_iptables_nft_has_not_made_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherTables(Nftables):
        async def tables(self) -> list[tuple[str, str]]:
            return [("ip6", "filter"), ("ip", "nat")]

    monkeypatch.setattr(xtables, "Nftables", OtherTables)
    client = Xtables(Variant(socket.AF_INET, "nft"))
    assert (await client.is_used("filter"), await client.remove("filter", "KROUTE-")) == (False, [])
    assert (await client.digest(["filter"])).counts == (0,)
