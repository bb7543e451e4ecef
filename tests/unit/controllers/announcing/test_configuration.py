"""The text that BIRD reads. tests/kernel/test_bird.py has BIRD itself read every form of it."""

import random
from pathlib import Path

import msgspec

from kroute.cli.bundle.redaction import secrets_of
from kroute.controllers.announcing.configuration import announced_in, configuration, without_addresses
from kroute.model.addresses import Family
from kroute.model.speaker import Peer, Secret, SpeakerPlan
from kroute.settings import Settings

ROUTER = Peer(address="192.0.2.1", asn=65000, local="192.0.2.9")
CLIENT = Peer(address="192.0.2.8", asn=64512, local="192.0.2.9", is_node=True, is_client=True)
PLAN = SpeakerPlan(
    asn=64512, router_id="192.0.2.9", families=tuple(Family), peers=(ROUTER, CLIENT), cluster_id="0.0.0.1"
)
ADDRESSES = ["10.96.0.1", "10.96.0.10", "203.0.113.7", "fd00:96::1"]


def section(text: str, first: str) -> list[str]:
    """The lines of a section, stripped, without its braces."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(first))
    end = next(number for number, line in enumerate(lines) if number > start and line == "}")
    return [line.strip() for line in lines[start + 1 : end]]


def test_equal_plans_give_equal_bytes_in_whatever_order_addresses_come() -> None:
    texts = set()
    for seed in range(5):
        addresses = ADDRESSES * 2
        random.Random(seed).shuffle(addresses)
        texts.add(configuration(PLAN, addresses, {}))
    assert len(texts) == 1


def test_what_is_announced_is_found_in_the_text_and_can_be_taken_out() -> None:
    text = configuration(PLAN, ADDRESSES, {})
    assert announced_in(text) == ADDRESSES
    assert without_addresses(text) == configuration(PLAN, (), {})


def test_each_family_has_a_table_of_its_own() -> None:
    text = configuration(PLAN, ADDRESSES, {})
    assert section(text, "protocol static kroute_vips4")[1:] == [f"route {it}/32 blackhole;" for it in ADDRESSES[:3]]
    assert section(text, "protocol static kroute_vips6")[1:] == ["route fd00:96::1/128 blackhole;"]
    assert "kernel" not in text


def test_networks_of_pods_are_announced_beside_addresses_and_reflected() -> None:
    networks, ranges = ("10.244.1.0/24", "fd00:244:0:1::/64"), ("10.244.0.0/16", "fd00:244::/48")
    plan = msgspec.structs.replace(PLAN, pod_networks=networks, pod_ranges=ranges)
    text = configuration(plan, ADDRESSES, {})
    assert section(text, "protocol static kroute_vips4")[-1] == "route 10.244.1.0/24 unreachable;"
    assert section(text, "protocol static kroute_vips6")[-1] == "route fd00:244:0:1::/64 unreachable;"
    learned = "if net.len != 32 && !(net ~ [ 10.244.0.0/16+ ]) then reject;"
    assert section(text, "filter kroute_from_nodes4")[0] == learned
    assert announced_in(text) == ADDRESSES
    assert without_addresses(text) == configuration(msgspec.structs.replace(plan, pod_networks=()), (), {})


def test_nothing_is_learned_but_host_routes_of_nodes_by_a_reflector() -> None:
    text = configuration(PLAN, ADDRESSES, {})
    assert section(text, "protocol bgp 'kroute-192.0.2.1'").count("import none;") == 2
    of_client = section(text, "protocol bgp 'kroute-192.0.2.8'")
    assert "import filter kroute_from_nodes4;" in of_client
    assert "import limit 100000 action block;" in of_client
    assert section(text, "filter kroute_from_nodes4")[0] == "if net.len != 32 then reject;"
    plain = configuration(SpeakerPlan(asn=1, router_id="1.1.1.1", families=tuple(Family), peers=(ROUTER,)), (), {})
    assert "import filter" not in plain


def test_routers_get_the_next_hop_of_what_a_reflector_passes_on() -> None:
    """It is the node that has announced it; or by a setting the reflector."""
    for changes, words in (({}, ["keep"] * 2), ({"is_next_hop_self": True}, ["self"] * 2), ({"cluster_id": ""}, [])):
        text = configuration(msgspec.structs.replace(PLAN, **changes), ADDRESSES, {})
        of_router, of_client = (section(text, f"protocol bgp 'kroute-{it.address}'") for it in (ROUTER, CLIENT))
        assert [line for line in of_router if "next hop" in line] == [f"next hop {word};" for word in words]
        assert not any("next hop" in line for line in of_client)


def test_a_password_is_in_the_session_of_its_peer_only() -> None:
    text = configuration(PLAN, (), {"192.0.2.1": Secret("of one")})
    assert 'password "of one";' in section(text, "protocol bgp 'kroute-192.0.2.1'")
    assert not any("password" in line for line in section(text, "protocol bgp 'kroute-192.0.2.8'"))


def test_a_bundle_knows_the_passwords_that_bird_has(tmp_path: Path) -> None:
    settings = Settings(node_name="node1", bird_directory=tmp_path)
    settings.bird_configuration.write_text(configuration(PLAN, ADDRESSES, {"192.0.2.1": Secret("of one peer")}))
    assert secrets_of(settings, {}) == {"of one peer"}
