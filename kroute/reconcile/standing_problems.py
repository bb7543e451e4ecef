"""What is wrong with the node and may pass: each problem is reported once, and taken back when it is over."""

from collections.abc import Callable, Collection

from kroute.model.plan import Problem


class StandingProblems:
    """Those of one controller that are not over yet. `report` gets each that comes, and `take_back` each that goes."""

    def __init__(self, report: Callable[[Problem], None], take_back: Callable[[Problem], None]) -> None:
        self._receive = report
        self._take_back = take_back
        self._known: dict[tuple[str, str], Problem] = {}

    @property
    def all(self) -> list[Problem]:
        """Those that are not over."""
        return list(self._known.values())

    def report(self, problems: Collection[Problem], is_alike: Callable[[Problem], bool]) -> None:
        """Report these problems, each once, and take back others that are alike."""
        named = {problem[:2]: problem for problem in problems}
        for name, known in list(self._known.items()):
            if name not in named and is_alike(known):
                del self._known[name]
                self._take_back(known)
        for name, problem in named.items():
            if name not in self._known:
                self._known[name] = problem
                self._receive(problem)
