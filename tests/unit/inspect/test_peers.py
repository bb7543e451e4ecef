"""What the agent answers about BGP peers and announced addresses."""

from pathlib import Path

import msgspec

from kroute.inspect import peers
from kroute.inspect.peers import (
    AnnouncementView,
    PeerList,
    PeerView,
    RouteList,
    answers_about,
    learned,
    peers_of,
    peers_seen,
    routes_of,
)
from kroute.inspect.status import routing_problems
from kroute.kernel.bird import Session
from kroute.model.objects import Applied
from tests.unit.controllers.announcing.test_announcing import OTHER_VIP, VIP, announcing_of, own_node, serving, started

UP = Session("kroute-192.168.123.1", "Established", "13:31:15", "192.168.123.1", 65000, 0, 2)


async def test_each_planned_peer_is_shown_with_what_bird_says(tmp_path: Path) -> None:
    routers = {"peer_router_ips": ("192.168.123.1", "192.168.123.9"), "peer_router_asns": (65000, 65001)}
    node = await started(tmp_path, serving("web", 1), **routers)
    node.bird.known = [UP]
    found = await peers_of(announcing_of(node))
    assert found.items == [
        PeerView("192.168.123.1", 65000, "router", "Established", "13:31:15", 2),
        PeerView("192.168.123.9", 65001, "router"),
    ]
    assert (found.trouble, list(found.names())) == ("", ["192.168.123.1", "192.168.123.9"])


async def test_while_bird_is_away_the_peers_are_unknown_and_it_is_said_why(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    node.bird.away = True
    found = await peers_of(announcing_of(node))
    assert [peer.state for peer in found.items] == ["unknown"]
    assert "cannot be reached" in found.trouble


async def test_who_observes_sees_the_sessions_of_the_last_look_and_asks_nobody(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1), bfd=True)
    announcing = announcing_of(node)
    assert peers_seen(announcing) == [], "no look yet"
    node.bird.known = [msgspec.structs.replace(UP, bfd="Up")]
    await node.resync()
    assert announcing.problems == []
    node.bird.known = [msgspec.structs.replace(UP, bfd="Down")]
    assert [(peer.state, peer.bfd) for peer in peers_seen(announcing)] == [("Established", "Up")]
    await node.resync()
    assert [(peer.state, peer.bfd) for peer in peers_seen(announcing)] == [("Established", "Down")]
    assert [problem.reason for problem in announcing.problems] == ["BfdDown"]
    node.bird.away = True
    await node.resync()
    assert [(peer.state, peer.bfd) for peer in peers_seen(announcing)] == [("unknown", "unknown")]


async def test_a_bird_that_is_away_is_asked_once_until_it_has_been_told_again(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    sessions, asked = node.bird.sessions, list[None]()

    async def counted() -> list[Session]:
        asked.append(None)
        return await sessions()

    node.bird.sessions = counted  # type: ignore[method-assign]
    node.bird.away = True
    await node.resync()
    assert len(asked) == 1
    await node.resync()
    assert len(asked) == 1
    node.bird.restart()
    node.bird.known = [UP]
    await node.wait(60.0)
    await node.resync()
    assert [peer.state for peer in peers_seen(announcing_of(node))] == ["Established"]


async def test_a_session_that_is_not_up_is_a_problem_until_it_is(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    node.bird.known = [Session("kroute-192.168.123.1", "Active", "13:31:15", "192.168.123.1", 65000, last_error="Hold")]
    await node.resync()
    [problem] = announcing_of(node).problems
    assert problem.reason == "PeerDown"
    assert "no BGP session with router 192.168.123.1 (Active): Hold" in problem.message
    node.bird.known = [UP]
    await node.resync()
    assert announcing_of(node).problems == []


async def test_routes_are_shown_with_their_services(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1), serving("api", 2), serving("other", 3, OTHER_VIP))
    assert routes_of(announcing_of(node)).items == [
        AnnouncementView(VIP, ["default/api", "default/web"], True),
        AnnouncementView(OTHER_VIP, ["default/other"], True),
    ]
    announcing_of(node).take_changes([Applied(own_node("node.kubernetes.io/unschedulable"))])
    await node.settle()
    found = routes_of(announcing_of(node))
    assert ([route.is_announced for route in found.items], found.withdraws) == ([False, False], "it is cordoned")
    [problem] = routing_problems([], announcing_of(node).withdraws)
    assert problem.reason == "NodeWithdraws"


async def test_explain_has_what_routers_learn_of_an_address(tmp_path: Path) -> None:
    inside = serving("inside", 3, "10.96.0.3", ())
    node = await started(tmp_path, serving("web", 1), inside)
    announcing = announcing_of(node)
    assert learned(announcing, [VIP]) == {VIP: "learn it from this node"}
    assert "it is not announced" in learned(announcing, ["10.96.0.3"])["10.96.0.3"]
    announcing.take_changes([Applied(own_node("node.kubernetes.io/unschedulable"))])
    await node.settle()
    assert learned(announcing, [VIP]) == {VIP: "do not learn it from this node: it is cordoned"}
    announcing.take_changes([Applied(own_node())])
    node.bird.away = True
    await node.settle()
    assert "do not learn it yet" in learned(announcing, [VIP])[VIP]
    assert learned(None, [VIP]) == {}


async def test_the_socket_has_both_answers_and_none_where_nothing_is_announced(tmp_path: Path) -> None:
    node = await started(tmp_path, serving("web", 1))
    answers = answers_about(announcing_of(node))
    shown = msgspec.json.decode(await answers[peers.PEERS](""), type=PeerList)
    assert [peer.address for peer in shown.items] == ["192.168.123.1"]
    routes = msgspec.json.decode(await answers[peers.ROUTES](""), type=RouteList)
    assert [route.address for route in routes.items] == [VIP]
    for question in peers.QUESTIONS:
        assert msgspec.json.decode(await answers_about(None)[question]("")) is None
