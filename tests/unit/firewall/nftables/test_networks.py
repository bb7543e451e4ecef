"""Of the networks that are wanted, those stand that are in no other."""

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from kroute.firewall.nftables.contents import Networks, outermost

ALL, HALF, QUARTER, BESIDE = "10.0.0.0/8", "10.128.0.0/9", "10.192.0.0/10", "11.0.0.0/8"
NETWORKS = st.sampled_from(
    [str(net) for size in (29, 30, 31, 32) for net in ip_network("10.0.0.0/29").subnets(new_prefix=size)]
)


class Kernel:
    """A set that refuses what overlaps, as nf_tables does."""

    def __init__(self) -> None:
        self.elements: set[str] = set()
        self.networks = Networks()

    def change(self, changes: dict[str, bool]) -> None:
        edit = self.networks.edit(changes)
        for network in edit.delete:
            self.elements.remove(network)
        for network in edit.add:
            assert not any(ip_network(network).overlaps(ip_network(other)) for other in self.elements)
            self.elements.add(network)
        self.networks.settle(edit)

    def want(self, *networks: str) -> None:
        self.change(dict.fromkeys(networks, True))

    def drop(self, *networks: str) -> None:
        self.change(dict.fromkeys(networks, False))

    @property
    def standing(self) -> list[str]:
        return sorted(self.elements)


def test_a_network_in_a_standing_one_is_written_when_that_one_goes() -> None:
    kernel = Kernel()
    kernel.want(ALL)
    kernel.want(HALF, BESIDE)
    assert kernel.standing == [ALL, BESIDE]
    kernel.drop(ALL)
    assert kernel.standing == [HALF, BESIDE]


def test_a_network_replaces_those_that_it_contains_in_one_edit() -> None:
    kernel = Kernel()
    kernel.want(HALF, BESIDE)
    edit = kernel.networks.edit({ALL: True})
    assert (edit.delete, edit.add) == ((HALF,), (ALL,))


def test_of_three_one_in_another_the_next_larger_one_takes_the_place() -> None:
    kernel = Kernel()
    kernel.want(QUARTER, ALL, HALF)
    kernel.drop(ALL)
    assert kernel.standing == [HALF]
    kernel.drop(QUARTER)
    assert kernel.standing == [HALF]


def test_an_edit_that_is_not_settled_changes_nothing() -> None:
    kernel = Kernel()
    kernel.want(HALF)
    kernel.networks.edit({ALL: True, HALF: False})
    assert kernel.networks.wanted == {HALF}


def test_what_is_covered_counts_as_there_until_what_covers_it_is_gone() -> None:
    kernel = Kernel()
    kernel.want(ALL, HALF)
    kernel.networks.found(kernel.elements)
    assert kernel.networks.wanted == {ALL, HALF}
    kernel.elements.clear()
    kernel.networks.found(kernel.elements)
    assert kernel.networks.wanted == set()


def test_a_network_that_another_program_has_added_goes_when_it_is_not_wanted() -> None:
    kernel = Kernel()
    kernel.want(HALF)
    kernel.elements = {ALL}
    kernel.networks.found(kernel.elements)
    kernel.drop(ALL)
    kernel.want(HALF)
    assert kernel.standing == [HALF]


@given(st.lists(st.dictionaries(NETWORKS, st.booleans(), min_size=1, max_size=6), max_size=8))
def test_after_any_changes_every_wanted_network_is_covered_and_no_other_address_is(
    steps: list[dict[str, bool]],
) -> None:
    kernel, wanted = Kernel(), set[str]()
    for changes in steps:
        kernel.change(changes)
        wanted = {it for it in wanted if changes.get(it, True)} | {it for it, is_there in changes.items() if is_there}
        assert addresses(kernel.elements) == addresses(wanted)
        assert kernel.networks.wanted == wanted
        kernel.networks.found(set(kernel.elements))
        assert kernel.networks.wanted == wanted, "a resync finds no drift"


def addresses(networks: set[str]) -> set[object]:
    return {address for it in networks for address in ip_network(it)}


def test_the_whole_of_a_family_covers_everything_in_it() -> None:
    assert outermost({"0.0.0.0/0", "0.0.0.0/32", "255.255.255.255/32"}) == {"0.0.0.0/0"}
    assert outermost({"::/0", "fd00::/8"}) == {"::/0"}
    assert outermost({"::/1", "8000::/1"}) == {"::/1", "8000::/1"}
