"""The page of the command line lists each message with which a command ends."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kroute.cli.fleet.agents import OTHER_VERSION
from tests.unit.each import assert_each

ROOT = Path(__file__).parents[2]
DOCUMENTED = re.findall(r"`([^`]+)`", (ROOT / "docs" / "command-line.md").read_text().partition("## Messages")[2])
SOURCES = (*ROOT.glob("kroute/cli/**/*.py"), ROOT / "kroute/inspect/agent_socket.py")
RAISED = frozenset(
    {"AgentUnreachableError", "BadParameter", "CommandRefusedError", "KubectlError", "UsageError", "ValueError"}
)
SAID = "complain"
UNSEEN = frozenset({"... cells for ... columns"})
"""These are for developers: no command line leads there."""


def messages() -> Iterator[str]:
    """The texts of errors and complaints in the code, with `...` for values."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            text = text_of(call.args[0])
            if (name in RAISED or name == SAID) and len(re.findall(r"[a-z]{2,}", text)) > 1:
                yield text


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(text)):
            return text.replace("`", "")
        case ast.JoinedStr(parts):
            return "".join(text_of(part) or "..." for part in parts).replace("......", "...")
    return ""


def test_the_page_lists_each_message() -> None:
    found = set(messages())

    def check(message: str) -> None:
        pattern = re.compile(".+?".join(map(re.escape, message.split("..."))))
        assert any(pattern.fullmatch(documented) for documented in DOCUMENTED)

    assert_each([*sorted(found - UNSEEN), OTHER_VERSION], check)
    assert found >= UNSEEN
    assert len(found) > 25
