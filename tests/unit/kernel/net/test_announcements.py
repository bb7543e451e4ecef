"""Announcements, byte by byte."""

from kroute.kernel.net.announcements import announcements

MAC = bytes.fromhex("02000000000a")


def test_an_ipv4_address_is_announced_by_an_arp_request_and_a_reply_for_itself() -> None:
    address = "c0a87bc9"  # 192.168.123.201
    head = "ffffffffffff" + "02000000000a" + "0806" + "0001" + "0800" + "06" + "04"
    request = head + "0001" + "02000000000a" + address + "000000000000" + address
    reply = head + "0002" + "02000000000a" + address + "02000000000a" + address
    assert [frame.hex() for frame in announcements("192.168.123.201", MAC)] == [request, reply]


def test_an_ipv6_address_is_announced_by_an_advertisement_that_overrides() -> None:
    address = "fd00000000000000000000000000c9c9"
    ethernet = "333300000001" + "02000000000a" + "86dd"
    ipv6 = "60000000" + "0020" + "3a" + "ff" + address + "ff020000000000000000000000000001"
    body = "20000000" + address + "0201" + "02000000000a"
    [frame] = announcements("fd00::c9c9", MAC)
    assert frame.hex()[:108] == ethernet + ipv6
    message = frame[54:]
    assert message.hex()[:4] == "8800"
    assert message.hex()[8:] == body
    pseudo_header = bytes.fromhex(address + "ff020000000000000000000000000001" + "00000020" + "0000003a")
    assert _sum_of_words(pseudo_header + message) == 0xFFFF, "the checksum is wrong"


def _sum_of_words(payload: bytes) -> int:
    total = sum(int.from_bytes(payload[at : at + 2], "big") for at in range(0, len(payload), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total
