"""The node's DNS servers are read from the resolver's files, whatever else these contain."""

from pathlib import Path

from kroute.watchers.node import dns_servers


def test_the_servers_of_all_files_in_canonical_text(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("# nameserver 10.9.9.9\nsearch nameserver\nnameserver 10.0.0.53\nnameserver\tFD00:0::53\n")
    other.write_text("nameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver\nnameserver nonsense\n")
    assert dns_servers([one, other, tmp_path / "none"]) == {"10.0.0.53", "fd00::53", "127.0.0.53"}


def test_a_file_of_anything_names_nobody_and_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_bytes(b"\xff\x00" * 100_000 + b"\nnameserver 10.0.0.53\n")
    assert dns_servers([file, tmp_path]) == set()
