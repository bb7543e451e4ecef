"""BIRD itself: the contract, what it answers while sessions are up, and whether it reads every configuration."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kroute.controllers.announcing.configuration import configuration, without_addresses
from kroute.kernel.bird import ANSWER_WITHIN, Bird, BirdError
from kroute.model.addresses import Family
from kroute.model.speaker import Bfd, Peer, Secret, SpeakerPlan
from tests.kernel import contracts_bird
from tests.kernel.nodes import HANG, run

pytestmark = pytest.mark.usefixtures("namespace")

OWN, OTHER = "10.9.9.1", "10.9.9.2"
ADDRESSES = ("10.96.0.1", "10.96.0.2", "fd00:96::1")


def eventually_there(path: Path) -> None:
    deadline = time.monotonic() + HANG
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class RealBirdNode:
    """BIRD in the test's namespace, or where `enter` leads."""

    def __init__(self, directory: Path, *enter: str) -> None:
        self.enter = enter
        self.socket, self.path = directory / "bird.ctl", directory / "kroute.conf"
        self.bird = Bird(self.socket, self.path)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        command = [*self.enter, "bird", "-f", "-R", "-c", str(self.path), "-s", str(self.socket)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually_there(self.socket)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(HANG)

    def refuse(self) -> str:
        return "nonsense"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealBirdNode]:
    made = RealBirdNode(tmp_path)
    yield made
    made.kill()


class TestBird(contracts_bird.BirdContract):
    pass


def connections() -> set[tuple[str, ...]]:
    """The ends of all established TCP connections."""
    return {tuple(line.split()[2:4]) for line in run("ss -Htn state established").splitlines()}


def plan(**changes: object) -> SpeakerPlan:
    usual = {"asn": 64512, "router_id": OWN, "families": tuple(Family)}
    return SpeakerPlan(**{**usual, **changes})  # type: ignore[arg-type]


def of_peer(**changes: object) -> Peer:
    return Peer(**{"address": OTHER, "asn": 65000, "local": OWN, **changes})  # type: ignore[arg-type]


PEERS = (
    of_peer(),
    of_peer(address="10.9.9.3", asn=64512),
    of_peer(address="10.9.9.4", port=1790, ttl=3, has_ttl_security=True, bfd=Bfd(300, 400, 5)),
    of_peer(address="10.9.9.5", has_ttl_security=True, bfd=Bfd(1000, 1000, 3)),
    of_peer(address="fd99::2", local="fd99::1", asn=4294967294),
    of_peer(address="10.9.9.6", asn=64512, is_node=True),
)
CLIENT = of_peer(address="10.9.9.7", asn=64512, is_node=True, is_client=True)
PASSWORDS = {"10.9.9.3": Secret("a b\\'{};#$/*c"), "fd99::2": Secret("secret")}
PLANS = {
    "plain": {},
    "without graceful restart": {"restart_time": 0, "hold_time": 3},
    "IPv4 only": {"families": (Family.IPV4,)},
    "a reflector": {"cluster_id": "0.0.0.42", "rejected": ("10.0.0.0/8", "0.0.0.0/0", "fd00::/8")},
    "pods": {
        "cluster_id": "0.0.0.42",
        "pod_networks": ("10.244.1.0/24", "fd00:244:0:1::/64"),
        "pod_ranges": ("10.244.0.0/16", "fd00:244::/48"),
    },
    "next hop": {"cluster_id": "0.0.0.42", "is_next_hop_self": True},
    "decorated": {"prepended": (65000,) * 3, "communities": ((65535, 65281), (1, 2, 3), (64512, 100))},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())
def test_bird_reads_every_configuration(changes: dict[str, object], tmp_path: Path) -> None:
    peers = (*PEERS, CLIENT) if "cluster_id" in changes else PEERS
    text = configuration(plan(peers=peers, **changes), ADDRESSES, PASSWORDS)
    for each in (text, without_addresses(text)):
        (tmp_path / "bird.conf").write_text(each)
        run(f"bird -p -c {tmp_path / 'bird.conf'}")


async def test_it_is_read_by_birds_user_alone(node: RealBirdNode) -> None:
    with pytest.raises(BirdError):
        await node.bird.configure(contracts_bird.FIRST)
    node.start()
    os.chown(node.socket, 12345, 12345)
    await node.bird.configure(contracts_bird.SECOND)
    found = node.path.stat()
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o600, 12345, 12345)


@pytest.fixture
def neighbour() -> Iterator[tuple[str, ...]]:
    """How a command runs in another namespace, to which a link leads."""
    with subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) as process:
        try:
            enter = ("nsenter", f"--net=/proc/{process.pid}/ns/net")
            own, other = Path("/proc/self/ns/net").stat(), Path(f"/proc/{process.pid}/ns/net")
            deadline = time.monotonic() + HANG
            while other.stat().st_ino == own.st_ino:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            run(f"ip link add near type veth peer name far netns {process.pid}")
            for command in (f"ip address add {OWN}/24 dev near", "ip address add fd99::1/64 dev near nodad"):
                run(command)
            run("ip link set near up")
            for command in (f"ip address add {OTHER}/24 dev far", "ip link set far up", "ip link set lo up"):
                run(" ".join((*enter, command)))
            yield enter
        finally:
            process.kill()


async def test_a_session_is_shown_with_its_state_its_routes_and_bfd(
    node: RealBirdNode, neighbour: tuple[str, ...], tmp_path: Path
) -> None:
    own = plan(port=1791, peers=(of_peer(port=1792, bfd=Bfd(300, 300, 3)), of_peer(address="10.9.9.3")))
    with pytest.raises(BirdError):
        await node.bird.configure(configuration(own, ADDRESSES, {}))
    node.start()
    other = RealBirdNode(tmp_path / "other", *neighbour)
    (tmp_path / "other").mkdir()
    other.path.write_text(
        f"router id {OTHER};\nprotocol device {{ }}\nprotocol bfd {{ }}\n"
        f"protocol bgp node {{ local {OTHER} port 1792 as 65000; bfd on;\n"
        f"neighbor {OWN} port 1791 as 64512; connect delay time 1; ipv4 {{ import all; export none; }};\n"
        "ipv6 { import all; export none; }; }\n"
    )
    other.start()
    try:
        deadline = time.monotonic() + HANG
        while (
            (session := (await node.bird.sessions())[0]).state != "Established"
            or session.announced < len(ADDRESSES)
            or session.bfd != "Up"
        ):
            assert time.monotonic() < deadline, session
            await asyncio.sleep(0.1)
        assert (session.name, session.neighbor, session.asn) == (f"kroute-{OTHER}", OTHER, 65000)
        assert (session.announced, session.learned) == (len(ADDRESSES), 0)
        [_, absent] = await node.bird.sessions()
        assert (absent.state, absent.announced, absent.bfd) != ("Established", 3, "Up")
        connection = connections()
        for addresses in (ADDRESSES[:1], (), ADDRESSES):
            await node.bird.configure(configuration(own, addresses, {}))
        assert (await node.bird.sessions())[0].state == "Established"
        assert connections() == connection != set(), "another address ended the session"
    finally:
        other.kill()


async def test_a_bird_that_hangs_is_given_up(node: RealBirdNode) -> None:
    with pytest.raises(BirdError):
        await node.bird.configure(contracts_bird.FIRST)
    node.start()
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(BirdError, match="is it hung"):
        await node.bird.has("text")
    assert time.monotonic() - began >= ANSWER_WITHIN
    node.process.send_signal(signal.SIGCONT)
