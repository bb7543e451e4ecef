"""Plans as text, one object a line, for the golden files."""

from collections.abc import Iterable, Iterator

from kroute.model.plan import ServicePlan, SetEntry, VirtualServer


def render(plans: Iterable[ServicePlan]) -> str:
    """Return the plans as text, sorted by Service, for a reviewer of golden files."""
    return "\n".join("\n".join(_lines(plan)) + "\n" for plan in sorted(plans, key=lambda plan: plan.key))


def _lines(plan: ServicePlan) -> Iterator[str]:
    yield f"Service {plan.key}"
    for server in plan.virtual_servers:
        yield f"  virtual server {_describe(server)}"
        for real_server in server.real_servers:
            yield f"    real server {real_server.address} {real_server.port} weight {real_server.weight}"
    for vip in plan.vips:
        yield f"  vip {vip.address} from {vip.source}"
    for entry in plan.set_entries:
        yield f"  {_entry(entry)}"
    for problem in plan.problems:
        yield f"  problem {problem.reason} [{problem.subject}]"
        yield f"    {problem.message}"


def _describe(server: VirtualServer) -> str:
    words = [str(server.key), server.scheduler]
    if server.flags:
        words.append(f"flags {server.flags:#x}")
    if server.persistence is not None:
        words.append(f"persistent {server.persistence.timeout} s /{server.persistence.prefix_length}")
    return " ".join(words)


def _entry(entry: SetEntry) -> str:
    return f"set {entry.set} {','.join(map(str, entry.element))}"
