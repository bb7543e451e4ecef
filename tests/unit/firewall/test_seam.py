"""The seam: only the backends and the kernel's own classes know the language of iptables, ipset and nf_tables.

`migration/`, its command and some modules of `checks/` deal with other programs' rules; the bundle for support has all
rules of the kernel, whoever made them, and the chart's values name the image that can remove such rules. The wiring
chooses which kernel clients are opened, records their writes, and gives them to a backend. The setting has the
backends' names.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kroute
from kroute.settings import FIREWALLS
from tests.unit.each import assert_each

PACKAGE = Path(kroute.__file__).parent
KNOW_THE_TOOLS = (
    "firewall/iptables/",
    "firewall/nftables/",
    "kernel/",
    "migration/",
    "cli/bundle/parts.py",
    "cli/chart_values.py",
    "cli/migrate.py",
    "checks/neighbours.py",
    "checks/other_proxies.py",
    "checks/running_proxies.py",
)
WIRING = (
    "checks/node_checks.py",
    "firewall/backend.py",
    "inspect/recording.py",
)
TOOLS = re.compile(r"kroute\.kernel\.(iptables|ipset|nftables)|kroute\.firewall\.(iptables|nftables)")
THE_SETTING = "settings/__init__.py"
WORDS = re.compile(
    r"ip6?tables|nf_?tables|ipset|xtables|ip_set|libiptc|KROUTE-|match-set|\bhash:|random.fully|\bmangle\b|REJECT\b"
)

MODULES = sorted(str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py"))
ABOVE = [name for name in MODULES if not name.startswith(KNOW_THE_TOOLS)]


def parsed(name: str) -> ast.Module:
    """The module; an empty one if its text has none of the words, which imports of the tools have, too."""
    text = (PACKAGE / name).read_text()
    return ast.parse(text if WORDS.search(text) else "")


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{it.name}" for it in node.names)
        elif isinstance(node, ast.Import):
            yield from (it.name for it in node.names)


def words(tree: ast.Module) -> Iterator[str]:
    """Yield the names in the code, and the text that is no docstring."""
    prose = {id(it.value) for it in ast.walk(tree) if isinstance(it, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id


def test_nothing_above_the_firewall_imports_the_tools_or_uses_their_words() -> None:
    def check(name: str) -> None:
        tree = parsed(name)
        assert [it for it in imports(tree) if TOOLS.match(it)] == []
        may_say = FIREWALLS if name == THE_SETTING else ()
        assert [it for it in words(tree) if WORDS.search(it) and it not in may_say] == []

    assert_each([name for name in ABOVE if not name.startswith(WIRING)], check)


def test_the_wiring_names_the_clients_and_no_backend() -> None:
    backends = tuple(f"kroute.firewall.{it}" for it in FIREWALLS)

    def check(name: str) -> None:
        assert [it for it in imports(parsed(name)) if it.startswith(backends)] == []

    assert_each([name for name in ABOVE if name.startswith(WIRING) and name != "firewall/backend.py"], check)


def test_the_exemptions_exist() -> None:
    assert all(any(name.startswith(it) for name in MODULES) for it in (*KNOW_THE_TOOLS, *WIRING, THE_SETTING))
