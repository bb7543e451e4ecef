"""The passwords of BGP peers: those of annotations, and the files of `--peer-passwords`, which count more.

Such a directory is a Secret's volume, or made by hand: a file for each router, which has the router's address for its
name, with `-` for each colon, since a Secret's key has none.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from kroute.model.plan import Problem
from kroute.model.speaker import Peer, Secret, SpeakerPlan, checked_password


class Passwords(NamedTuple):
    """A plan without the peers whose password cannot be used, the passwords by address, and what is wrong."""

    plan: SpeakerPlan
    by_address: dict[str, Secret]
    problems: list[Problem]


def with_passwords(plan: SpeakerPlan, directory: Path | None) -> Passwords:
    """Read the passwords of all routers. A peer would refuse a session without its password, so none is attempted."""
    found: dict[str, Secret] = {}
    usable: list[Peer] = []
    problems: list[Problem] = []
    for peer in plan.peers:
        try:
            password = _of_file(peer, directory) or peer.password
        except ValueError as error:
            problems.append(_problem(peer, str(error)))
            continue
        usable.append(peer)
        if password is not None:
            found[peer.address] = password
    return Passwords(msgspec.structs.replace(plan, peers=tuple(usable)), found, problems)


def file_name(address: str) -> str:
    """The name of the file with a router's password."""
    return address.replace(":", "-")


def _of_file(peer: Peer, directory: Path | None) -> Secret | None:
    if directory is None or peer.is_node:
        return None
    path = directory / file_name(peer.address)
    try:
        return checked_password(path.read_text().rstrip("\r\n"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _problem(peer: Peer, why: str) -> Problem:
    subject = f"peer {peer.address}"
    return Problem("NoPeerPassword", subject, f"{subject} is left out: {why}. See docs/routing.md.")
