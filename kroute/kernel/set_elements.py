"""Elements of sets in words, for logs and messages of all kinds of sets."""

from kroute.kernel.ipvs.objects import PROTOCOL_NAMES


def element_text(element: tuple[str | int, ...]) -> str:
    """The parts of an element with commas between them; the protocol, if it has one, by its name: `10.0.0.1,TCP,80`.

    An element begins with an address or network. If a number follows, it is the protocol.
    """
    address, *rest = element
    if rest and isinstance(rest[0], int):
        rest[0] = PROTOCOL_NAMES.get(rest[0], rest[0])
    return ",".join(map(str, [address, *rest]))
