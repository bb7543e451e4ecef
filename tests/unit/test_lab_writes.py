"""The lab's witness tells what a traced program asked the kernel to change from what it only read."""

from pathlib import Path

import pytest

from tests.lab.writes import reads, writes

HEAD = "4359  sendmsg(3<NETLINK:[ROUTE:4359]>, {msg_name={sa_family=AF_NETLINK, nl_pid=0}, msg_iov=[{iov_base="
GET_LINK = (
    f"{HEAD}[{{nlmsg_len=48, nlmsg_type=RTM_GETLINK, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=1, nlmsg_pid=0}}, "
    "{ifi_family=AF_UNSPEC, ifi_index=0}], iov_len=48}], msg_flags=0}, 0) = 48"
)
NFT = (
    "4363  sendto(3<NETLINK:[NETFILTER:4363]>, [{nlmsg_len=20, nlmsg_type=%s, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=0, "
)
GET_GENERATION = NFT % "NFNL_SUBSYS_NFTABLES<<8|NFT_MSG_GETGEN" + "nlmsg_pid=0}, {nfgen_family=AF_UNSPEC}], 20, 0) = 20"
UNKNOWN_PROTOCOL = NFT % "0xa10 /* NLMSG_??? */" + r'nlmsg_pid=0}, "\x00\x00\x00\x00"], 20, 0) = 20'
GET_SERVERS = NFT % "0x1d /* NLMSG_??? */" + r'nlmsg_pid=0}, "\x04\x01\x00\x00"], 20, 0) = 20'
PROC = r"\x2f\x70\x72\x6f\x63\x2f\x73\x79\x73\x2f\x78"  # /proc/sys/x


@pytest.mark.parametrize(
    ("line", "why"),
    [
        pytest.param(
            GET_LINK.replace("RTM_GETLINK", "RTM_DELADDR"),
            "netlink RTM_DELADDR",
            id="an address",
        ),
        pytest.param(
            GET_GENERATION.replace("NFT_MSG_GETGEN", "NFT_MSG_NEWTABLE"),
            "netlink NFNL_SUBSYS_NFTABLES<<8|NFT_MSG_NEWTABLE",
            id="a table",
        ),
        pytest.param(GET_GENERATION.replace("GETGEN", "GETOBJ_RESET"), "netlink NFNL", id="counters that are reset"),
        pytest.param(UNKNOWN_PROTOCOL.replace("0xa10", "0xa00"), "netlink 0xa00", id="a table, by its number"),
        pytest.param(UNKNOWN_PROTOCOL.replace("0xa10", "0x609"), "netlink 0x609", id="an element of a set"),
        pytest.param(GET_SERVERS.replace(r"\x04\x01", r"\x01\x01"), "netlink 0x1d", id="a virtual server"),
        pytest.param(r'9  setsockopt(4<RAW:[9]>, SOL_IP, IPT_SO_SET_REPLACE, "\x6e", 99) = 0', "socket", id="a rule"),
        pytest.param(f'9  openat(AT_FDCWD<\\x2f>, "{PROC}", O_WRONLY|O_TRUNC) = 3', "file /proc/sys/x", id="a sysctl"),
        pytest.param(r'9  execve("\x2f\x73\x62\x69\x6e\x2f\x69\x70", ["\x69\x70"]) = 0', "program /sbin/ip", id="ip"),
        pytest.param('9  finit_module(3<\\x2f>, "", 0) = 0', "finit_module", id="a module"),
    ],
)
def test_a_change_is_told(line: str, why: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(f"{GET_LINK}\n{line}\n")
    [told] = writes(trace)
    assert told.startswith(why)


def test_what_only_reads_is_none(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    lines = [GET_LINK, GET_GENERATION, UNKNOWN_PROTOCOL, GET_SERVERS, f'9  openat(AT_FDCWD, "{PROC}", O_RDONLY) = 3']
    trace.write_text("\n".join(lines))
    assert writes(trace) == []
    assert reads(trace) == 4


def test_a_program_that_was_not_traced_is_not_taken_for_one_that_writes_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text('9  openat(AT_FDCWD, "x", O_RDONLY) = 3\n')
    with pytest.raises(AssertionError, match="no netlink message"):
        writes(trace)
