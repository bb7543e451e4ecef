"""What `kroute check` says of the node's own firewall, from iptables-save's text and the chains of nf_tables."""

import pytest

from kroute.checks import neighbours
from kroute.checks.finding import Finding, Level
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


async def check(
    nft: list[NftChain], *, overrules: bool = True, reads_legacy: bool = True, **saved: str | None
) -> list[Finding]:
    """The findings where iptables-save prints this of table filter; `None` stands for a tool that is not installed."""

    def of(variant: Variant, table: str) -> str | None:
        assert table == "filter"
        return saved.get(str(variant).replace(" ", "_"), "")

    async def save(variant: Variant, table: str = "") -> str | None:
        if variant.name == "legacy" and of(variant, table) and not reads_legacy:
            raise KernelError("iptables-legacy-save failed: Permission denied (you must be root)")
        return of(variant, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "save", save)
        patch.setattr(neighbours, "may_be_in_use", lambda *asked: bool(of(*asked)))
        return await check_host_firewall(nft, overrules=overrules, reads_legacy=reads_legacy)


async def said(nft: list[NftChain], *, overrules: bool = True, **saved: str | None) -> list[tuple[Level, str]]:
    return [(it.level, it.message) for it in await check(nft, overrules=overrules, **saved)]


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
    [found] = await check(nft, overrules=False, **{f"IPv4_{variant}": DOCKER})
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
    [unread] = await check([], overrules=False, reads_legacy=False, IPv4_legacy=DOCKER)
    assert unread.level is Level.WARNING
    assert unread.message == "table filter of IPv4 legacy is in use, and cannot be read without CAP_NET_RAW"
    assert "`iptables-legacy-save -t filter`" in unread.next_step
