"""pyroute2 reads kroute's conntrack requests, and kroute parses its answers (nfnetlink_conntrack.h).

pyroute2 0.9.7 does not know the zone of one direction (CTA_TUPLE_ZONE); test_conntrack.py tests it.
"""

import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_CTNETLINK
from pyroute2.netlink.nfnetlink.nfctsocket import (
    FILTER_FLAG_CTA_IP_DST,
    FILTER_FLAG_CTA_IP_SRC,
    FILTER_FLAG_CTA_PROTO_DST_PORT,
    FILTER_FLAG_CTA_PROTO_NUM,
    IPCTNL_MSG_CT_DELETE,
    IPCTNL_MSG_CT_GET,
    nfct_msg,
)

from kroute.kernel.conntrack import (
    CTA_TUPLE_ORIG,
    CTA_TUPLE_REPLY,
    Endpoint,
    Ends,
    Flow,
    encode_connection_delete,
    encode_delete,
    encode_dump,
    encode_listing,
    pack_endpoint,
    parse_connection,
    parse_flow,
)
from kroute.kernel.netlink.message import pack_address
from tests.unit.kernel.witness import (
    Reading,
    addresses,
    families,
    family_of,
    ports,
    read,
    u16s,
    u32s,
    witnessed,
    write,
)

UDP = socket.IPPROTO_UDP


def flows_of(family: int) -> st.SearchStrategy[Flow]:
    ends = (addresses(family), ports) * 4
    return st.builds(Flow, *ends, st.just(0) | u16s, u32s)


flows = families.flatmap(flows_of)


def header(family: int) -> dict[str, int]:
    return {"nfgen_family": family, "version": 0, "res_id": 0}


def direction(source: Endpoint, destination: Endpoint, protocol: int = UDP) -> dict[str, Any]:
    kind = f"CTA_IP_V{6 if ':' in source[0] else 4}"
    return {
        "CTA_TUPLE_IP": {f"{kind}_SRC": source[0], f"{kind}_DST": destination[0]},
        "CTA_TUPLE_PROTO": {
            "CTA_PROTO_NUM": protocol,
            "CTA_PROTO_SRC_PORT": source[1],
            "CTA_PROTO_DST_PORT": destination[1],
        },
    }


def listed(flow: Flow, protocol: int = UDP) -> bytes:
    """Return an entry as the kernel lists it, with its attributes in the kernel's order."""
    told = header(family_of(flow.source)) | {
        "CTA_TUPLE_ORIG": direction(flow[0:2], flow[2:4], protocol),
        "CTA_TUPLE_REPLY": direction(flow[4:6], flow[6:8], protocol),
        "CTA_STATUS": 0x18A,
        "CTA_TIMEOUT": 29,
        "CTA_COUNTERS_ORIG": {"CTA_COUNTERS_PACKETS": 1, "CTA_COUNTERS_BYTES": 60},
        "CTA_MARK": 0x4000,
        "CTA_USE": 1,
        "CTA_ID": flow.id,
    }
    return write(nfct_msg, told | {"CTA_ZONE": flow.zone} if flow.zone else told)


@witnessed
@given(flows)
def test_a_listed_flow_is_read_with_both_directions_zone_and_id(flow: Flow) -> None:
    assert parse_flow(listed(flow), {pack_endpoint(flow[2:4])}) == flow


@witnessed
@given(flows, st.integers(0, 255))
def test_what_is_not_asked_for_is_left_out(flow: Flow, protocol: int) -> None:
    everywhere = {pack_endpoint(flow[2:4])}
    assert (parse_flow(listed(flow, protocol), everywhere) is not None) is (protocol == UDP)
    elsewhere = {pack_endpoint((flow.destination, flow.destination_port ^ 1))}
    assert parse_flow(listed(flow), elsewhere) is None


@witnessed
@given(flows)
def test_a_deletion_names_the_reply_the_id_and_the_zone_of_an_entry_that_has_one(flow: Flow) -> None:
    named = header(family_of(flow.source)) | {"CTA_TUPLE_REPLY": direction(flow[4:6], flow[6:8]), "CTA_ID": flow.id}
    wanted = named | {"CTA_ZONE": flow.zone} if flow.zone else named
    kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE
    assert read(nfct_msg, encode_delete(flow)) == Reading(kind, NLM_F_REQUEST, wanted)


@witnessed
@given(flows, st.sampled_from((6, 17, 132)))
def test_a_connection_is_read_and_its_deletion_names_what_that_of_a_flow_does(flow: Flow, protocol: int) -> None:
    found = parse_connection(listed(flow, protocol), {pack_address(flow.reply_source)}, lambda _: True)
    assert found is not None
    ends = Ends(protocol, flow.source, flow.reply_source, flow.reply_source_port)
    assert (found.ends, found.called) == (ends, flow[2:4])
    reply = direction(flow[4:6], flow[6:8], protocol)
    named = header(family_of(flow.source)) | {"CTA_TUPLE_REPLY": reply, "CTA_ID": flow.id}
    wanted = named | {"CTA_ZONE": flow.zone} if flow.zone else named
    kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE
    assert read(nfct_msg, encode_connection_delete(found)) == Reading(kind, NLM_F_REQUEST, wanted)


@witnessed
@given(addresses(socket.AF_INET), st.booleans())
def test_connections_are_asked_for_by_the_source_of_one_direction(address: str, is_reply: bool) -> None:
    kind, name = (CTA_TUPLE_REPLY, "CTA_TUPLE_REPLY") if is_reply else (CTA_TUPLE_ORIG, "CTA_TUPLE_ORIG")
    flags = {"CTA_FILTER_ORIG_FLAGS": 0, "CTA_FILTER_REPLY_FLAGS": 0}
    flags[f"CTA_FILTER_{name[10:]}_FLAGS"] = FILTER_FLAG_CTA_IP_SRC
    asked = header(socket.AF_INET) | {name: {"CTA_TUPLE_IP": {"CTA_IP_V4_SRC": address}}, "CTA_FILTER": flags}
    sort = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
    found = read(nfct_msg, encode_listing(socket.AF_INET, kind, pack_address(address)))
    assert found == Reading(sort, NLM_F_REQUEST | NLM_F_DUMP, asked)


@witnessed
@given(families)
def test_a_dump_is_filtered_by_the_protocol_of_the_original_direction_alone(family: int) -> None:
    asked = header(family) | {
        "CTA_TUPLE_ORIG": {"CTA_TUPLE_PROTO": {"CTA_PROTO_NUM": UDP}},
        "CTA_FILTER": {"CTA_FILTER_ORIG_FLAGS": FILTER_FLAG_CTA_PROTO_NUM, "CTA_FILTER_REPLY_FLAGS": 0},
    }
    kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
    assert read(nfct_msg, encode_dump(family)) == Reading(kind, NLM_F_REQUEST | NLM_F_DUMP, asked)


@witnessed
@given(flows)
def test_a_dump_for_one_destination_is_filtered_by_address_and_port_too(flow: Flow) -> None:
    address, port = pack_endpoint(flow[2:4])
    family = family_of(flow.source)
    flags = FILTER_FLAG_CTA_PROTO_NUM | FILTER_FLAG_CTA_IP_DST | FILTER_FLAG_CTA_PROTO_DST_PORT
    asked = header(family) | {
        "CTA_TUPLE_ORIG": {
            "CTA_TUPLE_IP": {f"CTA_IP_V{6 if ':' in flow.source else 4}_DST": flow.destination},
            "CTA_TUPLE_PROTO": {"CTA_PROTO_NUM": UDP, "CTA_PROTO_DST_PORT": flow.destination_port},
        },
        "CTA_FILTER": {"CTA_FILTER_ORIG_FLAGS": flags, "CTA_FILTER_REPLY_FLAGS": 0},
    }
    kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
    assert read(nfct_msg, encode_dump(family, address, port)) == Reading(kind, NLM_F_REQUEST | NLM_F_DUMP, asked)
