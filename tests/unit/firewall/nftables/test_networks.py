"""Of the networks that are wanted for a key, those stand that are in no other."""

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from kroute.firewall.nftables.networks import Edit, Networks, outermost, portions
from kroute.model.plan import Element

PORT, OTHER = ("10.96.0.1", 6, 80), ("10.96.0.2", 6, 80)
ALL, HALF, QUARTER, BESIDE = "10.0.0.0/8", "10.128.0.0/9", "10.192.0.0/10", "11.0.0.0/8"
NETWORKS = st.sampled_from(
    [str(net) for size in (29, 30, 31, 32) for net in ip_network("10.0.0.0/29").subnets(new_prefix=size)]
)
KEYS = st.sampled_from([PORT, OTHER])


class Kernel:
    """A set that refuses what overlaps, as nf_tables does."""

    def __init__(self) -> None:
        self.elements: set[Element] = set()
        self.networks = Networks()

    def change(self, changes: dict[Element, bool]) -> None:
        self.write(self.networks.edits(changes))

    def write(self, edits: list[Edit]) -> None:
        for edit in edits:
            for element in edit.delete:
                self.elements.remove(element)
            for element in edit.add:
                assert not any(overlap(element, other) for other in self.elements)
                self.elements.add(element)
            self.networks.settle(edit)

    def want(self, *networks: str) -> None:
        self.change({(*PORT, it): True for it in networks})

    def drop(self, *networks: str) -> None:
        self.change({(*PORT, it): False for it in networks})

    @property
    def standing(self) -> list[str]:
        return sorted(str(it[-1]) for it in self.elements)


def overlap(one: Element, other: Element) -> bool:
    return one[:-1] == other[:-1] and ip_network(str(one[-1])).overlaps(ip_network(str(other[-1])))


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
    [edit] = kernel.networks.edits({(*PORT, ALL): True})
    assert (edit.delete, edit.add) == (((*PORT, HALF),), ((*PORT, ALL),))


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
    kernel.networks.edits({(*PORT, ALL): True, (*PORT, HALF): False})
    assert set(kernel.networks.all()) == {(*PORT, HALF)}


def test_what_is_covered_counts_as_there_until_what_covers_it_is_gone() -> None:
    kernel = Kernel()
    kernel.want(ALL, HALF)
    kernel.networks.found(kernel.elements)
    assert set(kernel.networks.all()) == {(*PORT, ALL), (*PORT, HALF)}
    kernel.elements.clear()
    kernel.networks.found(kernel.elements)
    assert list(kernel.networks.all()) == []
    assert len(kernel.networks) == 0


def test_a_network_that_another_program_has_added_goes_when_it_is_not_wanted() -> None:
    kernel = Kernel()
    kernel.want(HALF)
    kernel.elements = {(*PORT, ALL)}
    kernel.networks.found(kernel.elements)
    kernel.drop(ALL)
    kernel.want(HALF)
    assert kernel.standing == [HALF]


@given(st.lists(st.dictionaries(st.tuples(KEYS, NETWORKS), st.booleans(), min_size=1, max_size=6), max_size=8))
def test_after_any_changes_every_wanted_network_is_covered_and_no_other_address_is(
    steps: list[dict[tuple[Element, str], bool]],
) -> None:
    kernel, wanted = Kernel(), set[Element]()
    for step in steps:
        changes = {(*key, network): is_wanted for (key, network), is_wanted in step.items()}
        kernel.change(changes)
        wanted = {it for it in wanted if changes.get(it, True)} | {it for it, is_there in changes.items() if is_there}
        assert addresses(kernel.elements) == addresses(wanted)
        assert set(kernel.networks.all()) == wanted
        assert len(kernel.networks) == len(wanted)
        kernel.networks.found(set(kernel.elements))
        assert set(kernel.networks.all()) == wanted, "a resync finds no drift"


def addresses(elements: set[Element]) -> set[tuple[Element, object]]:
    return {(it[:-1], address) for it in elements for address in ip_network(str(it[-1]))}


def test_the_whole_of_a_family_covers_everything_in_it() -> None:
    assert outermost({"0.0.0.0/0", "0.0.0.0/32", "255.255.255.255/32"}) == {"0.0.0.0/0"}
    assert outermost({"::/0", "fd00::/8"}) == {"::/0"}
    assert outermost({"::/1", "8000::/1"}) == {"::/1", "8000::/1"}


def test_edits_go_in_transactions_that_are_short_for_the_sets_size_and_each_edit_stays_whole() -> None:
    networks = Networks([(f"10.96.0.{number}", 6, 80, ALL) for number in range(200)])
    more = networks.edits({(f"10.96.1.{number}", 6, 80, ALL): True for number in range(250)})
    assert [len(it) for it in portions(more, 0)] == [200, 50]
    assert [len(it) for it in portions(more, 20_000)] == [7] * 35 + [5]
    fewer = networks.edits({(f"10.96.0.{number}", 6, 80, ALL): False for number in range(4)})
    assert [len(it) for it in portions(fewer, 20_000)] == [1, 1, 1, 1]
    assert [len(it) for it in portions(fewer, 1000)] == [4]
    assert list(portions([], 0)) == []


def test_an_edit_that_only_adds_or_only_deletes_goes_in_parts_that_are_short_for_the_sets_size() -> None:
    key = ("10.96.0.1", 6, 80)
    many = {(*key, f"10.{number // 256}.{number % 256}.0/24"): True for number in range(1000)}
    kernel = Kernel()
    for changes, most in ((many, 250), (dict.fromkeys(many, False), 6)):
        edits = kernel.networks.edits(changes)
        assert sum(len(it.add) + len(it.delete) for it in edits) == 1000
        assert max(len(it.add) + len(it.delete) for it in edits) < most
        for one in edits:
            kernel.write([one])
            assert set(kernel.networks.all()) == kernel.elements, "an edit that is refused leaves the others known"
    assert kernel.elements == set()
