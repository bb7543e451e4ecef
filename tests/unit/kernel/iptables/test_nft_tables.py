"""What the iptables tools are told to write, from what iptables-nft-save prints; the kernel's part is in the lab."""

import socket

import pytest

from kroute.kernel.iptables import nft_tables
from kroute.kernel.iptables.nft_tables import NftTables
from kroute.kernel.iptables.tools import Variant, XtablesTools
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.nftables.client import Nftables

RULES = TableRules(
    "filter",
    {"KROUTE-FORWARD": ['-m comment --comment "two words" -j ACCEPT']},
    [("FORWARD", '-m comment --comment "kroute: jump" -j KROUTE-FORWARD')],
    frozenset({"FORWARD"}),
)
JUMP = f"-A FORWARD {RULES.jumps[0][1]}"
RIGHT = f"-A KROUTE-FORWARD {RULES.chains['KROUTE-FORWARD'][0]}"
CHAINS = ":FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n:KROUTE-FORWARD - [0:0]"


class FakeTools(XtablesTools):
    """Prints `saved` and keeps what is written."""

    def __init__(self, *lines: str) -> None:
        self.saved = "\n".join(["*filter", CHAINS, *lines, "COMMIT", ""])
        self.written: list[str] = []

    async def save(self, variant: Variant, table: str = "") -> str:
        assert (variant.name, table) == ("nft", "filter")
        return self.saved

    async def write(self, variant: Variant, table: str, lines: list[str]) -> None:
        self.written += lines


class FakeNftables(Nftables):
    """Has these tables."""

    def __init__(self, *tables: tuple[str, str]) -> None:
        super().__init__()
        self._tables = list(tables)

    async def tables(self) -> list[tuple[str, str]]:
        return self._tables


@pytest.fixture(autouse=True)
def nf_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with one table."""
    monkeypatch.setattr(nft_tables, "Nftables", lambda: FakeNftables(("ip", "filter")))


async def test_what_is_right_is_not_written_also_behind_jumps_of_others() -> None:
    for lines in ([JUMP, RIGHT], ["-A FORWARD -j DOCKER-USER", JUMP, RIGHT]):
        tools = FakeTools(*lines)
        assert await NftTables(socket.AF_INET, tools).ensure(RULES) == []
        assert tools.written == []


@pytest.mark.parametrize(
    ("lines", "found", "moved"),
    [
        ([RIGHT], ["the jumps of FORWARD are not first"], []),
        (["-A FORWARD -j DROP", JUMP, RIGHT], ["the jumps of FORWARD are not first"], [f"-D {JUMP[3:]}"]),
        ([JUMP], ["chain KROUTE-FORWARD has other rules"], None),
        ([JUMP, RIGHT, RIGHT], ["chain KROUTE-FORWARD has other rules"], None),
    ],
    ids=["no jump", "behind a rule that drops", "emptied", "a rule more"],
)
async def test_what_is_wrong_is_written_whole(lines: list[str], found: list[str], moved: list[str] | None) -> None:
    tools = FakeTools(*lines)
    assert await NftTables(socket.AF_INET, tools).ensure(RULES) == found
    jumps = [] if moved is None else [*moved, f"-I FORWARD 1 {RULES.jumps[0][1]}"]
    assert tools.written == [":KROUTE-FORWARD - [0:0]", *jumps, RIGHT]


async def test_no_tool_is_asked_for_a_table_that_the_kernel_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft_tables, "Nftables", lambda: FakeNftables(("ip6", "filter"), ("ip", "nat")))
    tables = NftTables(socket.AF_INET, FakeTools(JUMP))
    assert (await tables.is_used("filter"), await tables.remove("filter", "KROUTE-")) == (False, [])
