"""Each setting is read as an operator writes it, or refused with a sentence that names the allowed values."""

import pytest

from kroute.base.schedulers import flag_bits, parse_scheduler_flags
from kroute.settings import Exemption, ListenAddress
from kroute.settings import text as settings_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("0s", 0), ("5m", 300), ("1h30m", 5400), ("0.5s", 0.5), ("45", 45), ("1h2m3s", 3723)],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert settings_text.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1s1m", "forever"])
def test_a_bad_duration_says_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match="write 30s, 5m or 1h30m"):
        settings_text.parse_duration(text)


@pytest.mark.parametrize("text", ["0.5s", "745h"])
def test_an_ipvs_timeout_is_whole_seconds_within_the_kernels_bound(text: str) -> None:
    with pytest.raises(ValueError, match="whole seconds, at most 31 days"):
        settings_text.parse_timeout(text)


def test_scheduler_flags_are_words_of_the_kernels_flags_or_none() -> None:
    assert parse_scheduler_flags("sh-port, mh-port") == ("sh-port", "mh-port")
    assert flag_bits(parse_scheduler_flags("none"), "mh") == 0
    with pytest.raises(ValueError, match=r"'ops' is not a flag of a scheduler\. Allowed: none, flag-1"):
        parse_scheduler_flags("mh-port,ops")


def test_networks_of_both_families_are_read_in_canonical_form() -> None:
    assert settings_text.parse_networks("10.0.0.0/8, FD00:0::/64,10.1.2.3") == (
        "10.0.0.0/8",
        "fd00::/64",
        "10.1.2.3/32",
    )


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "pods", "fd00::1::/64"])
def test_a_bad_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network"):
        settings_text.parse_networks(f"10.0.0.0/8,{text}")


def test_load_balancer_classes_are_names_with_or_without_a_prefix() -> None:
    read = settings_text.parse_load_balancer_classes
    assert read("default, kroute.io,example.com/Internal_vip,default") == (
        "default",
        "kroute.io",
        "example.com/Internal_vip",
    )
    for text in ("a/b/c", "/b", "example.com/", "-a", "a!", "a" * 64):
        with pytest.raises(ValueError, match="is not a loadBalancerClass"):
            read(text)


def test_node_addresses_are_at_most_one_a_family() -> None:
    assert settings_text.parse_node_ips("192.168.123.250,fd00:0::1") == ("192.168.123.250", "fd00::1")
    with pytest.raises(ValueError, match="at most one IPv4 and one IPv6"):
        settings_text.parse_node_ips("192.168.123.250,192.168.123.251")


@pytest.mark.parametrize(
    ("text", "exemption"),
    [
        ("192.168.130.0/24:192.168.0.0/16", Exemption("192.168.130.0/24", "192.168.0.0/16")),
        ("10.1.2.3:10.0.0.0/8", Exemption("10.1.2.3/32", "10.0.0.0/8")),
        ("fd00:1::/64:fd00:2::/64", Exemption("fd00:1::/64", "fd00:2::/64")),
    ],
)
def test_exemptions_are_a_source_and_a_destination(text: str, exemption: Exemption) -> None:
    assert settings_text.parse_exemption(text) == exemption


@pytest.mark.parametrize("text", ["10.0.0.0/8", "10.0.0.0/8:fd00::/64", "10.0.0.0/8:", "a:b"])
def test_a_bad_exemption_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"pair of networks|is not a network|one family"):
        settings_text.parse_exemption(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:10249", ListenAddress("127.0.0.1", 10249)),
        ("[::1]:10249", ListenAddress("::1", 10249)),
        ("[fd00:0::1]:80", ListenAddress("fd00::1", 80)),
        (":10256", ListenAddress("", 10256)),
        ("0.0.0.0:10256", ListenAddress("", 10256)),
        ("[::]:10256", ListenAddress("", 10256)),
        ("off", None),
    ],
)
def test_bind_addresses_are_an_address_and_a_port(text: str, where: ListenAddress | None) -> None:
    assert settings_text.parse_listen_address(text) == where


@pytest.mark.parametrize(
    "text",
    ["", "10256", "127.0.0.1", "::1:10256", "[::1]", "localhost:10256", "1.2.3.4:0", "1.2.3.4:65536", "[1.2]:1"],
)
def test_a_bad_bind_address_says_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match=r"write IP:PORT, \[IPv6\]:PORT, :PORT for every address, or off"):
        settings_text.parse_listen_address(text)


def test_a_bind_address_is_shown_as_it_is_written() -> None:
    assert [str(settings_text.parse_listen_address(text)) for text in ("[::1]:1", "127.0.0.1:2", "[::]:3")] == [
        "[::1]:1",
        "127.0.0.1:2",
        ":3",
    ]


def test_the_mark_is_a_single_bit() -> None:
    assert settings_text.parse_mark("0x4000") == 0x4000
    assert settings_text.parse_mark("8") == 8
    for text in ("0", "3", "0x100000000", "-1", "mark"):
        with pytest.raises(ValueError, match="single bit"):
            settings_text.parse_mark(text)


@pytest.mark.parametrize("text", ["", "a-name-that-is-too-long", "eth 0", "a/b", ".."])
def test_interface_names_are_what_the_kernel_takes(text: str) -> None:
    with pytest.raises(ValueError, match="is not an interface name"):
        settings_text.parse_interface(text)


def test_api_servers_keep_their_order_and_count_once() -> None:
    servers = settings_text.parse_servers("https://b:6443/, https://[2001:db8::1]:6443,https://b:6443 https://a")
    assert servers == ("https://b:6443", "https://[2001:db8::1]:6443", "https://a")


@pytest.mark.parametrize("url", ["10.0.0.1:6443", "ftp://a", "https://", "https://a:port", "http://a:0"])
def test_an_api_server_that_is_not_a_url_is_named_with_what_is_allowed(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not a URL: allowed is http://HOST\[:PORT\]") as raised:
        settings_text.parse_servers(f"https://10.0.0.1:6443,{url},https://10.0.0.3:6443")
    assert repr(url) in str(raised.value)
    assert "10.0.0.3" not in str(raised.value)


def test_a_token_is_not_sent_in_clear_text_because_a_server_with_tls_fails() -> None:
    with pytest.raises(ValueError, match="mixes http:// and https://"):
        settings_text.parse_servers("https://10.0.0.1:6443,http://10.0.0.2:8080")
