"""The parts of the lab that can be tested without a kernel."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab import feeds, places
from tests.lab.mode import lab_mode
from tests.lab.vm import host, kernels, provide, remote_run
from tests.lab.vm.diagnosis import CAUSES, likely_cause
from tests.lab.vm.durations import Durations, without_suffix
from tests.lab.vm.fleet import free_place
from tests.lab.vm.host import HostError, memory_directory
from tests.lab.vm.kernels import BARE, BUILT, PACKAGED
from tests.lab.vm.machine import Machine, MachineError
from tests.lab.vm.remote_run import RemoteRun
from tests.lab.vm.work import Work, matrix


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty cache for each test, and no choice of a kernel or feed."""
    monkeypatch.setenv("KROUTE_CACHE", str(tmp_path))
    monkeypatch.delenv("KROUTE_KERNEL", raising=False)
    monkeypatch.delenv("KROUTE_FEED", raising=False)
    monkeypatch.delenv("KROUTE_LAB_THOROUGH", raising=False)
    return tmp_path


def items(
    *nodeids: str, everywhere: bool = False, again: bool = False, turn: int | None = None, **marked: bool
) -> list[pytest.Item]:
    in_turn = None if turn is None else pytest.mark.feed_in_turn(turn).mark
    markers = {"every_kernel": everywhere, "each_feed": again, "feed_in_turn": in_turn, **marked}
    return [
        SimpleNamespace(nodeid=nodeid, get_closest_marker=markers.get)  # type: ignore[misc]
        for nodeid in nodeids
    ]


def names(tests: list[pytest.Item]) -> list[str]:
    return [item.nodeid for item in tests]


class TestWork:
    def test_files_stay_whole_and_the_longest_comes_first(self) -> None:
        tests = items("a.py::1", "a.py::2", "b.py::1", "c.py::1")
        work = Work(BUILT, tests, Durations({"a.py::1": 1, "a.py::2": 1, "b.py::1": 9, "c.py::1": 1}, {}))
        assert work.seconds_waiting == 12
        assert [names(work.take()) for _ in range(4)] == [["b.py::1"], ["a.py::1", "a.py::2"], ["c.py::1"], []]
        assert not work

    def test_what_a_lost_machine_owed_is_done_next(self) -> None:
        work = Work(BUILT, items("a.py::1", "a.py::2", "b.py::1"), Durations({"a.py::1": 5, "a.py::2": 5}, {}))
        taken = work.take()
        work.give_back(taken[1:])
        assert names(work.take()) == ["a.py::2"]
        assert names(work.take_all()) == ["b.py::1"]

    def test_a_machine_that_is_up_has_a_file_in_reserve(
        self, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, own_cache: Path
    ) -> None:
        machine = SimpleNamespace(shared=own_cache, is_up=False, running=True, check=lambda: None)
        machine.start = lambda *_, **__: None
        monkeypatch.setattr(remote_run, "Machine", lambda *_: machine)
        work = Work(BUILT, items("a.py::1", "a.py::2", "b.py::1", "c.py::1"), Durations({}, {}))
        run = RemoteRun(1, work, pytestconfig)
        assert (list(run.events()), [*run.owed]) == ([], ["a.py::1", "a.py::2"])
        machine.is_up = True
        assert (list(run.events()), [*run.owed]) == ([], ["a.py::1", "a.py::2", "b.py::1"])
        finished = [{"event": "finish", "nodeid": it} for it in ("a.py::1", "a.py::2")]
        (own_cache / "events").write_text("".join(json.dumps(it) + "\n" for it in finished))
        assert (list(run.events()), [*run.owed]) == (finished, ["b.py::1", "c.py::1"])

    def test_a_new_machine_takes_the_place_of_the_one_that_ended(self) -> None:
        assert [free_place(taken) for taken in ([], [0, 1], [3, 0, 2], [1, 2, 3])] == [0, 2, 1, 0]

    def test_the_first_kernel_runs_all_and_the_others_what_is_marked(self) -> None:
        marked, other = items("a.py::1", everywhere=True), items("b.py::1")
        first, second = matrix([*marked, *other], [BUILT, PACKAGED], Durations({}, {}))
        assert (first.kernel, len(first), first.suffix) == (BUILT, 2, "")
        assert (second.kernel, len(second), second.suffix) == (PACKAGED, 1, "@packaged")

    def test_each_test_runs_on_a_kernel_that_has_what_it_needs_and_once_more_on_another_binary_only(self) -> None:
        tests = [
            *items("k.py::1", everywhere=True),
            *items("k.py::2", everywhere=True, legacy=True),
            *items("s.py::1"),
            *items("s.py::2", legacy=True),
            *items("n.py::1", everywhere=True, nftables=True),
            *items("n.py::2", legacy=True, nftables=True),
        ]
        works = matrix(tests, [BARE, BUILT, PACKAGED], Durations({}, {}))
        assert [(work.kernel, work.suffix, names(work.take_all())) for work in works] == [
            (BARE, "", ["k.py::1", "s.py::1", "n.py::1"]),
            (BUILT, "", ["k.py::2", "s.py::2", "n.py::2"]),
            (PACKAGED, "@packaged", ["k.py::1", "k.py::2"]),
        ]
        first, second = matrix(tests, [BUILT, PACKAGED], Durations({}, {}))
        assert (len(first), len(second)) == (6, 2)
        [alone] = matrix(tests[:1], [BARE], Durations({}, {}))
        assert (alone.kernel, alone.suffix, len(alone)) == (BARE, "", 1)

    def test_what_is_for_each_firewall_runs_once_more_on_a_kernel_with_another_one(self) -> None:
        tests = [
            *items("s.py::1", each_firewall=True, turn=0),
            *items("s.py::2", each_firewall=True, legacy=True),
            *items("s.py::3", each_firewall=True, everywhere=True),
        ]
        works = matrix(tests, [BARE, BUILT, PACKAGED], Durations({}, {}))
        assert [(work.kernel, work.suffix, names(work.take_all())) for work in works] == [
            (BARE, "", ["s.py::1", "s.py::3"]),
            (BUILT, "", ["s.py::2"]),
            (BUILT, "@built", ["s.py::3"]),
            (BUILT, "@built@api", ["s.py::1"]),
            (PACKAGED, "@packaged", ["s.py::3"]),
        ]
        first, second = matrix(tests[2:], [BARE, PACKAGED], Durations({}, {}))
        assert (first.kernel, second.kernel, names(second.take_all())) == (BARE, PACKAGED, ["s.py::3"])

    def test_what_is_for_each_feed_has_an_api_server(self) -> None:
        [work] = matrix(items("c.py::1", again=True), [BUILT, PACKAGED], Durations({}, {}))
        assert (work.kernel, work.feed, len(work), work.suffix) == (BUILT, "api", 1, "@api")

    def test_in_a_thorough_run_what_is_for_each_feed_runs_once_by_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KROUTE_LAB_THOROUGH", "1")
        conformance, scenario = items("c.py::1", again=True), items("s.py::1", everywhere=True)
        first, second, third = matrix([*conformance, *scenario], [BUILT, PACKAGED], Durations({}, {}))
        assert (first.feed, len(first), first.suffix) == ("manifests", 2, "")
        assert (second.kernel, second.feed, names(second.take_all()), second.suffix) == (
            BUILT,
            "api",
            ["c.py::1"],
            "@api",
        )
        assert (third.feed, names(third.take_all()), third.suffix) == ("manifests", ["s.py::1"], "@packaged")

    def test_what_takes_turns_has_another_feed_on_each_kernel_and_runs_no_more_often(self) -> None:
        tests = [*items("s1.py::1", everywhere=True, turn=0), *items("s2.py::1", everywhere=True, turn=1)]
        works = matrix(tests, [BUILT, PACKAGED], Durations({}, {}))
        assert [(work.kernel, work.feed, work.suffix, names(work.take_all())) for work in works] == [
            (BUILT, "manifests", "", ["s1.py::1"]),
            (BUILT, "api", "@api", ["s2.py::1"]),
            (PACKAGED, "manifests", "@packaged", ["s2.py::1"]),
            (PACKAGED, "api", "@packaged@api", ["s1.py::1"]),
        ]
        [alone] = matrix(tests, [BUILT], Durations({}, {}))
        assert (alone.feed, alone.suffix, len(alone)) == ("manifests", "", 2)

    @pytest.mark.parametrize("feed", ["manifests", "api"])
    def test_one_feed_that_is_named_is_the_only_one(self, feed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KROUTE_FEED", feed)
        tests = [*items("s.py::1", everywhere=True, turn=1), *items("c.py::1", again=True)]
        works = matrix(tests, [BUILT, PACKAGED], Durations({}, {}))
        assert [(work.feed, work.suffix, len(work)) for work in works] == [(feed, "", 2), (feed, "@packaged", 1)]

    def test_a_feed_that_does_not_exist_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KROUTE_FEED", "etcd")
        with pytest.raises(ValueError, match="KROUTE_FEED=etcd: use auto, manifests or api"):
            feeds.wanted()

    def test_a_kernel_without_any_test_has_no_machines(self) -> None:
        assert [work.kernel for work in matrix(items("b.py::1"), [BUILT, PACKAGED], Durations({}, {}))] == [BUILT]


class TestDurations:
    def test_what_has_never_run_here_takes_what_its_file_usually_does(self) -> None:
        durations = Durations({"a.py::1": 5, "a.py::2": 3}, {"a.py": 9, "b.py": 7})
        assert [durations.of(nodeid) for nodeid in ("a.py::1", "a.py::3", "b.py::1", "c.py::1")] == [5, 9, 7, 1]
        assert durations.by_file() == {"a.py": 4}

    def test_another_kernel_takes_another_time(self) -> None:
        durations = Durations({"a.py::1": 2, "a.py::1@packaged": 6}, {"b.py": 1, "b.py@packaged": 3, "b.py@api": 4})
        assert durations.of("b.py::2@api") == 4
        assert Durations({}, {"b.py": 7}).of("b.py::2@api") == 7
        assert (durations.of("b.py::1"), durations.of("b.py::1@packaged")) == (1, 3)
        assert durations.by_file() == {"a.py": 2, "a.py@packaged": 6}

    @pytest.mark.parametrize("suffix", ["", "@packaged", "@api", "@packaged@api"])
    def test_a_test_has_a_name_without_kernel_and_feed(self, suffix: str) -> None:
        assert without_suffix(f"a.py::test_of_somebody@host[a@b]{suffix}") == "a.py::test_of_somebody@host[a@b]"

    def test_they_are_remembered_with_those_of_tests_that_did_not_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(places, "PROJECT", tmp_path)
        first = Durations.read()
        first.add("a", 1.0)
        first.add("a", 0.5)
        first.write()
        second = Durations.read()
        second.add("b", 2.0)
        second.write()
        assert (Durations.read().of("a"), Durations.read().of("b")) == (1.5, 2.0)


class TestKernels:
    def make(self, kernel: kernels.Kernel) -> None:
        (kernel.modules / "1.2.3").mkdir(parents=True)
        kernel.binary.touch()

    def test_the_cache_is_the_users_unless_one_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert places.cache() == tmp_path
        monkeypatch.delenv("KROUTE_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert places.cache() == tmp_path / "xdg/kroute"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert places.cache() == tmp_path / "home/.cache/kroute"

    def test_another_recipe_is_another_kernel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = BUILT.directory
        for name in BUILT.ingredients:
            (tmp_path / name).write_bytes((kernels.RECIPE / name).read_bytes())
        monkeypatch.setattr(kernels, "RECIPE", tmp_path)
        assert BUILT.directory == before
        (tmp_path / "options").write_text("CONFIG_NOTHING=y")
        assert BUILT.directory != before

    def test_the_kernel_of_today_is_taken_if_it_is_there_else_what_is_made_the_quickest(self) -> None:
        assert kernels.default() == PACKAGED
        self.make(BUILT)
        assert kernels.default() == BUILT
        assert kernels.usable() == [BARE, BUILT]
        self.make(PACKAGED)
        assert kernels.usable() == [BARE, BUILT, PACKAGED]
        assert BUILT.title == "Linux 1.2.3 (built)"

    def test_one_can_be_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.make(BUILT)
        monkeypatch.setenv("KROUTE_KERNEL", "packaged")
        assert kernels.usable() == [PACKAGED]
        monkeypatch.setenv("KROUTE_KERNEL", "own")
        with pytest.raises(ValueError, match="KROUTE_KERNEL=own: use auto, bare, built, packaged"):
            kernels.wanted()

    @pytest.mark.parametrize(
        ("which", "nothing", "with_packaged"),
        [
            ("quickest", ["packaged"], []),
            ("newest", ["built"], ["built"]),
            ("every", ["built", "packaged"], ["built"]),
        ],
    )
    def test_the_set_up_makes_what_is_missing(self, which: str, nothing: list[str], with_packaged: list[str]) -> None:
        assert [it.recipe for it in provide.missing(which)] == nothing
        self.make(PACKAGED)
        assert [it.recipe for it in provide.missing(which)] == with_packaged

    def test_the_bare_kernel_is_the_built_one_without_what_is_legacy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KROUTE_KERNEL", "bare")
        assert provide.missing("every") == [BARE]
        assert BARE.directory == BUILT.directory
        self.make(BUILT)
        assert kernels.usable() == [BARE]
        options = (kernels.RECIPE / "options").read_text()
        legacy = r"^CONFIG_(IP_SET\w*|NETFILTER_XT_SET|IP6?_NF_(?:FILTER|MANGLE|NAT|RAW))=y"
        kinds = re.findall(legacy, options, re.MULTILINE)
        assert len(BARE.lacks) == len(kinds) + 2  # ip_tables and ip6_tables come with their tables
        assert "initcall_blacklist=ip_set_init,bitmap_port_init,list_set_init,xt_set_init,hash_ip_init" in " ".join(
            BARE.command_line
        )

    def test_every_kernel_has_somewhere_to_come_from(self) -> None:
        rows = (kernels.RECIPE / "suites").read_text().splitlines()
        assert {row.split()[0] for row in rows if not row.startswith("#")} == {
            it.recipe for it in kernels.KERNELS.values()
        }


CONSOLES = {
    "ptrace set fp regs failed, errno = 14": "AMX",
    "check_ptrace : PTRACE_OLDSETOPTIONS failed, errno = 1": "SYS_PTRACE",
    "unable to truncate memory file: No space left on device": "no room left",
    "Checking PROT_EXEC mmap in /dev/shm...Operation not permitted": "without execution",
    "Waiting for root device /dev/nowhere...": "root file system is not there",
    "Kernel panic - not syncing: Requested init /nowhere failed (error -2).": "first process, /nowhere",
    "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100": "first process ended",
    "Out of memory: Killed process 88 (python3)": "ran out of memory",
    "Kernel panic - not syncing: sysrq triggered crash": "panicked: sysrq triggered crash",
}


class TestFailures:
    @pytest.mark.parametrize(("console", "cause"), CONSOLES.items(), ids=CONSOLES.values())
    def test_a_console_tells_the_cause_and_what_to_do(self, console: str, cause: str) -> None:
        assert cause in likely_cause(f"Linux version 6.1\n{console}\n <60045fda> ? um_set_signals+0x0/0x3e\n")

    def test_every_cause_is_distinguished(self) -> None:
        assert len({likely_cause(console) for console in CONSOLES}) == len(CAUSES)

    def test_a_console_that_says_nothing_known_has_no_cause(self) -> None:
        assert likely_cause("Linux version 6.1\nRun /sbin/init as init process\n") == ""

    def test_a_machine_without_its_kernel_says_how_to_get_it(self) -> None:
        with Machine("test") as made, pytest.raises(MachineError, match="run scripts/setup lab"):
            made.start(["true"], environment={})
        assert not made.shared.exists()

    def test_memory_lies_where_there_is_room_and_programs_may_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = {Path("/dev/shm"): 100 << 20, tmp_path: 200 << 20}
        monkeypatch.setattr(host.shutil, "disk_usage", lambda place: SimpleNamespace(free=free[place]))
        assert memory_directory(150) == tmp_path
        with pytest.raises(HostError, match=r"it needs 300 MiB, /dev/shm has 100, .* has 200; make room"):
            memory_directory(300)


@pytest.mark.parametrize("wish", ["vm", "host"])
def test_the_environment_chooses_where_the_lab_runs(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    monkeypatch.setenv("KROUTE_LAB", wish)
    assert lab_mode() == wish


def test_a_wrong_choice_names_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_LAB", "docker")
    with pytest.raises(ValueError, match="use vm, host or auto"):
        lab_mode()
