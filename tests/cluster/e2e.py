"""`python -m tests.cluster.e2e`: run Kubernetes' own end-to-end tests on the cluster, and write what came of them.

With kroute, then with kube-proxy in the same cluster. The section of docs/conformance.md has both. Options choose less.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.cluster import addons, announcements, proxies
from tests.cluster.components import DNS, DUAL_STACK
from tests.cluster.e2e_cases import ALONE, POLICIES, SETS, why_not_run
from tests.cluster.e2e_report import FAILED, SKIPPED, Outcome, Run, read, results_of, section, title, with_section
from tests.cluster.installation import install, uninstall
from tests.cluster.machines import Cluster, missing
from tests.conformance.table import PAGE
from tests.conformance.table import Run as Here
from tests.lab import kubernetes
from tests.lab.kubernetes import VERSION
from tests.lab.places import leftovers
from tests.lab.vm.kernels import BUILT

NODES = 3
"""In as many zones: the least that every case accepts."""
STREAMS = 4
"""Programs at once: the cases wait most of the time."""
PORTION = 2
"""Cases of one program. Their outcomes are kept when it ends."""
LONGEST = "90m"
_KUBE_PROXY = "kube-proxy"
BY_KROUTE = (
    "settings.pod-network=true",
    "settings.overlay=full",
    "settings.cluster-cidr={10.244.0.0/16,fd00:10:244::/48}",
)
"""Values of kroute's chart by which it connects pods. The page calls them `pod-network`."""


def main(arguments: Sequence[str]) -> int:
    """Run the cases that the arguments choose. Returns 1 if there is no cluster to run them on."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.e2e")
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}; if none, all but {POLICIES}")
    parser.add_argument("--only", default="", help="a regular expression: of these sets the cases that have it")
    parser.add_argument("--rest", action="store_true", help="only what has not passed; what has failed runs alone")
    parser.add_argument("--proxy", action="append", help="kroute, or kube-proxy:MODE; both, one after the other")
    parser.add_argument("--set", action="append", default=[], help="a value of kroute's chart, as helm takes it")
    parser.add_argument("--pod-network", action="store_true", help="with pods that kroute alone connects, by tunnels")
    parser.add_argument("--load-balancers", action="store_true", help="with kroute's own, announced to a router")
    parser.add_argument("--ipv6", action="store_true", help="on a cluster that has IPv6 alone")
    chosen = parser.parse_args(arguments)
    if said := missing() or kubernetes.missing("e2e.test"):
        print(said, file=sys.stderr)
        return 1
    families = DUAL_STACK[1:] if chosen.ipv6 else DUAL_STACK
    by_kroute = [*BY_KROUTE * chosen.pod_network, *announcements.VALUES * chosen.load_balancers]
    if by_kroute:
        chosen.proxy = ["kroute"]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(NODES, families, beside=True, has_pod_network=not chosen.pod_network))
        if chosen.load_balancers:
            stack.enter_context(announcements.router(cluster))
        cluster.apply(*addons.dns(cluster.control.address, [DNS[families[0]]]))
        for proxy in chosen.proxy or ["kroute", f"{_KUBE_PROXY}:nftables"]:
            name, _, mode = proxy.partition(":")
            values = [] if name == _KUBE_PROXY else chosen.set
            more = {
                "pod-network": chosen.pod_network,
                "load balancers": chosen.load_balancers,
                "IPv6 only": chosen.ipv6,
            }
            called = " ".join([name, mode, *values, *(word for word, is_so in more.items() if is_so)]).split()
            with _installed(cluster, name, mode, [*values, *by_kroute]):
                _run(cluster, " ".join(called), chosen)
    return 0


def _run(cluster: Cluster, proxy: str, chosen: argparse.Namespace) -> None:
    """Run what was chosen with the proxy that is called so, and write what comes of it to the page as it comes."""
    found = results_of(PAGE.read_text()).items() if chosen.rest else ()
    before = {case: outcome for (by, case), (outcome, _) in found if by == proxy}
    suite = Suite(cluster, leftovers() / "e2e" / f"{time.time_ns()}", has_load_balancers=chosen.load_balancers)
    cases = [case for case in suite.cases(chosen.sets or SETS.keys() - {POLICIES}) if re.search(chosen.only, case)]
    failed = {case for case in cases if title(case) in before and before[title(case)].status == FAILED}
    wanted = [case for case in cases if title(case) not in before or case in failed]
    here = Here.here((), "")
    run = Run(proxy, here.date, here.commit, BUILT.title)
    done = 0
    for outcomes in suite.run(wanted, failed):
        done += len(outcomes)
        said = [f"{case}: {outcome.why}" for case, outcome in outcomes.items() if outcome.status == FAILED]
        print(f"{proxy}: {done} of {len(wanted)}", *said, sep="\n  failed: ", flush=True)
        write(run, outcomes)


def write(run: Run, outcomes: Mapping[str, Outcome]) -> None:
    """Put what became of cases into the page."""
    page = PAGE.read_text()
    new = {(run.proxy, title(case)): (outcome, run) for case, outcome in outcomes.items()}
    PAGE.write_text(with_section(page, section(results_of(page) | new, VERSION)))


@contextlib.contextmanager
def _installed(cluster: Cluster, name: str, mode: str, values: Sequence[str]) -> Iterator[None]:
    """A proxy on the cluster, as long as the context is entered."""
    if name != _KUBE_PROXY:
        install(cluster, *(word for value in values for word in ("--set", value)))
        cluster.wait_until("all nodes are ready", cluster.nodes_are_ready)
        yield
        uninstall(cluster)
        return
    proxies.deploy(cluster, name, mode)
    yield
    proxies.delete(cluster, name)


class Suite:
    """`e2e.test` beside the nodes of a cluster; its files in `directory`."""

    def __init__(self, cluster: Cluster, directory: Path, *, has_load_balancers: bool = False) -> None:
        self._cluster = cluster
        self._directory = directory
        self._has_load_balancers = has_load_balancers

    def cases(self, sets: Collection[str]) -> list[str]:
        """The names of the cases of these sets, as the program knows them."""
        with tempfile.TemporaryDirectory() as name:
            assert self._start(Path(name), ".", "--ginkgo.dry-run").wait() == 0, (Path(name) / "log").read_text()
            known = read(Path(name).glob("*.xml"))
        return sorted(case for case in known if any(re.search(SETS[it], case) for it in sets))

    def run(self, cases: Sequence[str], alone: Collection[str] = ()) -> Iterator[dict[str, Outcome]]:
        """Run the cases, some at once, then those that are to be alone; yields what became of a portion as it ends."""
        wanted = [case for case in cases if not self._why_not_run(case)]
        yield {case: Outcome(SKIPPED, why) for case in cases if (why := self._why_not_run(case))}
        together = [case for case in wanted if not ALONE.search(case) and case not in alone]
        count = -(-len(together) // PORTION)
        with ThreadPoolExecutor(STREAMS) as threads:
            portions = [together[number::count] for number in range(count)]
            running = [threads.submit(self._portion, f"{number}", it) for number, it in enumerate(portions)]
            try:
                for done in as_completed(running):
                    yield done.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)  # those that have not begun, if this is interrupted
        for number, case in enumerate(case for case in wanted if case not in together):
            yield self._portion(f"alone-{number}", [case])

    def _why_not_run(self, case: str) -> str:
        families = self._cluster.control.place.families
        return why_not_run(case, families, has_load_balancers=self._has_load_balancers)

    def _portion(self, name: str, cases: Sequence[str]) -> dict[str, Outcome]:
        """Run cases in one program; returns what became of each, but for those that did not come to an end."""
        self._start(self._directory / name, "|".join(rf" {re.escape(case)}$" for case in cases)).wait()
        reported = read((self._directory / name).glob("*.xml"))
        return {case: reported[case] for case in cases if case in reported}

    def _start(self, directory: Path, focus: str, *more: str) -> "subprocess.Popen[bytes]":
        """Start the program for these cases; `log` and its JUnit file will be in the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.xml"):
            old.unlink()
        command = [
            *("setpriv", "--pdeathsig", "KILL"),
            str(kubernetes.required("e2e.test")),
            f"--kubeconfig={self._cluster.kubeconfig}",
            f"--report-dir={directory}",
            f"--ginkgo.focus={focus}",
            f"--ginkgo.timeout={LONGEST}",
            *("--provider=skeleton", "--node-os-distro=debian", f"--num-nodes={NODES}", "--disable-log-dump"),
            *("--ginkgo.no-color", "--ginkgo.silence-skips", "--ginkgo.poll-progress-after=600s", *more),
        ]
        with self._cluster.wire.inside(), (directory / "log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=self._cluster.environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
