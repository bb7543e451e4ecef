"""`python -m tests.cluster.e2e`: run Kubernetes' own end-to-end tests on the cluster, and write what came of them.

With kroute, then with kube-proxy in the same cluster. The section of docs/conformance.md has both. Options choose less.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster import addons, proxies
from tests.cluster.components import CONTROL, DNS, SERVICES
from tests.cluster.e2e_cases import ALONE, SETS, why_not_run
from tests.cluster.e2e_report import SKIPPED, Outcome, Run, keep, kept, read, section, with_section
from tests.cluster.installation import install, uninstall
from tests.cluster.machines import NODES, Cluster, missing
from tests.conformance.table import PAGE
from tests.conformance.table import Run as Here
from tests.lab import kubernetes
from tests.lab.kubernetes import VERSION
from tests.lab.places import leftovers
from tests.lab.vm.kernels import BUILT

STREAMS = 4
"""Programs at once: the cases wait most of the time."""
LONGEST = "90m"
_KUBE_PROXY = "kube-proxy"
_NOT_REPORTED = "the program ended before it was over"


def main(arguments: Sequence[str]) -> int:
    """Run the cases that the arguments choose. Returns 1 if a case failed that kube-proxy passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.e2e")
    parser.add_argument("sets", nargs="*", help=f"what to run, of {', '.join(SETS)}; all if none is given")
    parser.add_argument("--only", default="", help="a regular expression: of these sets the cases that have it")
    parser.add_argument("--proxy", action="append", help="kroute, or kube-proxy:MODE; both, one after the other")
    parser.add_argument("--set", action="append", default=[], help="a value of kroute's chart, as helm takes it")
    parser.add_argument("--no-page", action="store_true", help="leave docs/conformance.md as it is")
    chosen = parser.parse_args(arguments)
    if said := missing() or kubernetes.missing("e2e.test"):
        print(said, file=sys.stderr)
        return 1
    with Cluster() as cluster:
        # Webhooks are behind Services, and the control plane's machine has no proxy of its own.
        cluster.on(cluster.control, f"ip route add {SERVICES.partition(',')[0]} via {NODES[0].addresses[0]}")
        cluster.apply(*addons.dns(CONTROL.addresses[0], [DNS]))
        for proxy in chosen.proxy or ["kroute", f"{_KUBE_PROXY}:nftables"]:
            name, _, mode = proxy.partition(":")
            with _installed(cluster, name, mode, chosen.set):
                suite = Suite(cluster, leftovers() / "e2e" / name)
                cases = [case for case in suite.cases(chosen.sets or [*SETS]) if re.search(chosen.only, case)]
                title = " ".join([name, mode, *chosen.set]).strip()
                here = Here.here((), "")
                run = Run(title, here.date, here.commit, BUILT.title, suite.run(cases))
            keep(run, leftovers() / "e2e")
            failed = [f"{case}: {it.why}" for case, it in run.cases.items() if it.status == "failed"]
            print(f"{title}: {len(failed)} of {len(cases)} failed", *failed, sep="\n  ", flush=True)
    runs = kept(leftovers() / "e2e")
    if not chosen.no_page:
        PAGE.write_text(with_section(PAGE.read_text(), section(runs, VERSION)))
    return 0


@contextlib.contextmanager
def _installed(cluster: Cluster, name: str, mode: str, values: Sequence[str]) -> Iterator[None]:
    """A proxy on the cluster, as long as the context is entered."""
    if name != _KUBE_PROXY:
        install(cluster, *(word for value in values for word in ("--set", value)))
        yield
        uninstall(cluster)
        return
    proxies.deploy(cluster, mode)
    yield
    proxies.delete(cluster)


class Suite:
    """`e2e.test` beside the nodes of a cluster; its files in `directory`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory

    def cases(self, sets: Sequence[str]) -> list[str]:
        """The names of the cases of these sets, as the program knows them."""
        with tempfile.TemporaryDirectory() as name:
            assert self._start(Path(name), ".", "--ginkgo.dry-run").wait() == 0, (Path(name) / "log").read_text()
            known = read(Path(name).glob("*.xml"))
        return sorted(case for case in known if any(re.search(SETS[it], case) for it in sets))

    def run(self, cases: Sequence[str]) -> dict[str, Outcome]:
        """Run the cases, some at once and then those that are to be alone. Returns what became of each."""
        outcomes = {case: Outcome(SKIPPED, why) for case in cases if (why := why_not_run(case))}
        wanted = [case for case in cases if case not in outcomes]
        together = [case for case in wanted if not ALONE.search(case)]
        streams = [together[number::STREAMS] for number in range(STREAMS)]
        for stage in (streams, [[case for case in wanted if ALONE.search(case)]]):
            running = []
            for number, stream in enumerate(filter(None, stage)):
                directory = self._directory / f"{'alone' if stage is not streams else number}"
                names = "|".join(rf" {re.escape(case)}$" for case in stream)
                running.append((directory, stream, self._start(directory, names)))
            for directory, stream, program in running:
                program.wait()
                reported = read(directory.glob("*.xml"))
                outcomes |= {case: reported.get(case, Outcome("failed", _NOT_REPORTED)) for case in stream}
        return outcomes

    def _start(self, directory: Path, focus: str, *more: str) -> "subprocess.Popen[bytes]":
        """Start the program for these cases; `log` and its JUnit file will be in the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.xml"):
            old.unlink()
        command = [
            str(kubernetes.required("e2e.test")),
            f"--kubeconfig={self._cluster.kubeconfig}",
            f"--report-dir={directory}",
            f"--ginkgo.focus={focus}",
            f"--ginkgo.timeout={LONGEST}",
            *("--provider=skeleton", "--node-os-distro=debian", "--num-nodes=2", "--disable-log-dump"),
            *("--ginkgo.no-color", "--ginkgo.silence-skips", "--ginkgo.poll-progress-after=600s", *more),
        ]
        with self._cluster.wire.inside(), (directory / "log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=self._cluster.environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
