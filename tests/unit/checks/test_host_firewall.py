"""What `kroute check` says of the node's own firewall, from iptables-save's text and the chains of nf_tables."""

import pytest

from kroute.checks.finding import Level
from kroute.checks.neighbours import check_host_firewall
from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.nftables.objects import NftChain

NFT_FILTER = [NftChain("ip", "filter", "FORWARD", "forward", drops=True)]
DOCKER = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
COMMIT
"""
UFW = """\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:ufw-before-forward - [0:0]
-A FORWARD -m comment --comment "of ufw" -j ufw-before-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"""
FIREWALLD = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -j REJECT --reject-with icmp-host-prohibited
COMMIT
"""


class FakeTools:
    """iptables-save of table filter; `None` stands for a tool that is not installed."""

    reads_legacy = True

    def __init__(self, **saved: str | None) -> None:
        self._saved = saved

    async def save(self, variant: Variant, table: str = "") -> str | None:
        assert table == "filter"
        saved = self._saved.get(str(variant).replace(" ", "_"), "")
        if variant.name == "legacy" and saved and not self.reads_legacy:
            raise KernelError("iptables-legacy-save failed: Permission denied (you must be root)")
        return saved

    def may_be_in_use(self, variant: Variant, table: str) -> bool:
        return bool(self._saved.get(str(variant).replace(" ", "_"), ""))


async def said(nft: list[NftChain], *, overrules: bool = True, **saved: str | None) -> list[tuple[Level, str]]:
    found = await check_host_firewall(FakeTools(**saved), nft, overrules=overrules)
    return [(it.level, it.message) for it in found]


async def test_a_node_without_a_firewall_is_fine_with_or_without_the_tools() -> None:
    fine = [(Level.OK, "kroute has the answers of pods forwarded")]
    assert await said([]) == await said([], IPv4_legacy=None, IPv6_legacy=None) == fine


@pytest.mark.parametrize(("nft", "variant"), [([], "legacy"), (NFT_FILTER, "nft")])
async def test_a_forward_chain_that_drops_is_no_harm_where_kroute_has_rules(nft: list[NftChain], variant: str) -> None:
    [(level, message)] = await said(nft, **{f"IPv4_{variant}": DOCKER})
    assert level is Level.OK
    assert message.endswith(f"though FORWARD of IPv4 {variant} refuses what no rule accepts (policy DROP)")


async def test_an_input_chain_that_drops_decides_who_reaches_services() -> None:
    forward, incoming = await said(NFT_FILTER, IPv4_nft=UFW)
    assert forward[0] is Level.OK
    assert incoming[0] is Level.WARNING
    assert incoming[1].startswith("INPUT of IPv4 nft refuses what no rule accepts (policy DROP): Services are reached")


async def test_a_last_rule_that_refuses_all_is_like_a_policy() -> None:
    _, (level, message) = await said([], IPv6_legacy=FIREWALLD)
    assert (level, "INPUT of IPv6 legacy refuses what no rule accepts (rule -j REJECT)" in message) == (
        Level.WARNING,
        True,
    )


@pytest.mark.parametrize("hook", ["forward", "input"])
@pytest.mark.parametrize("table", ["inet fw", "inet filter", "ip filter"])
async def test_a_chain_of_nf_tables_that_no_iptables_tool_shows_is_named(hook: str, table: str) -> None:
    others = [NftChain("inet", "fw", "y", hook), NftChain("bridge", "fw", "z", hook, drops=True)]
    found = await said([NftChain(*table.split(), "x", hook, drops=True), *others])
    warnings = [message for level, message in found if level is Level.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"nft chain {table} x refuses what no rule accepts (policy drop)")


@pytest.mark.parametrize(("nft", "variant"), [([], "legacy"), (NFT_FILTER, "nft")])
async def test_a_forward_chain_that_drops_is_named_where_kroute_cannot_overrule_it(
    nft: list[NftChain], variant: str
) -> None:
    tools = FakeTools(**{f"IPv4_{variant}": DOCKER})
    [found] = await check_host_firewall(tools, nft, overrules=False)
    assert found.level is Level.WARNING
    assert found.message.startswith(
        f"FORWARD of IPv4 {variant} refuses what no rule accepts (policy DROP): the answers"
    )
    assert f"`iptables-{variant} -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`" in found.next_step


@pytest.mark.parametrize("where", ["FORWARD", "a chain that every packet meets"])
async def test_a_chain_that_accepts_established_connections_is_no_harm(where: str) -> None:
    saved = UFW if where != "FORWARD" else UFW.replace("-A ufw-before-forward", "-A FORWARD")
    forward, _ = await said(NFT_FILTER, overrules=False, IPv4_nft=saved)
    assert forward[0] is Level.OK
    assert forward[1].startswith("nothing drops the answers of pods, though FORWARD of IPv4 nft refuses")


async def test_what_accepts_answers_of_one_bridge_only_does_not_count() -> None:
    only = UFW.replace("-A ufw-before-forward -m", "-A ufw-before-forward -o docker0 -m")
    forward, _ = await said(NFT_FILTER, overrules=False, IPv4_nft=only)
    assert forward[0] is Level.WARNING


async def test_a_legacy_table_that_may_not_be_read_is_named_and_nothing_fails() -> None:
    tools = FakeTools(IPv4_legacy=DOCKER)
    tools.reads_legacy = False
    [unread] = await check_host_firewall(tools, [], overrules=False, reads_legacy=False)
    assert unread.level is Level.WARNING
    assert unread.message == "table filter of IPv4 legacy is in use, and cannot be read without CAP_NET_RAW"
    assert "`iptables-legacy-save -t filter`" in unread.next_step
