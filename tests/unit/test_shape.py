"""The shape of the code: what a class knows, what it is given, how long a function is, and what modules share.

Each limit has a table of the exceptions that stand today. A row that is not needed any more fails, and so does one
that has grown: the tables can only shrink.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "kroute"

ATTRIBUTES = 12
"""Of an object that has behaviour. A record is data: its fields are not counted."""
CONSTRUCTOR_ARGUMENTS = 8
FUNCTION_LINES = 40
"""Lines of code in a function's body, without its docstring, comments and blank lines."""

RECORDS = {"Struct", "NamedTuple", "TypedDict", "Protocol", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
CHANGING_METHODS = (
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert"}
    | {"pop", "popitem", "popleft", "remove", "setdefault", "update"}
)  # fmt: skip
"""Of a dict, a list, a set or a deque."""
CONTAINERS = {"dict", "list", "set", "deque", "defaultdict", "Counter"}
NAMED_TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}

MANY_ATTRIBUTES: dict[str, int] = {
    "agent: Agent": 16,
    "director: DirectRouting": 15,
    "director: Director": 16,
    "director: DirectorAddresses": 13,
    "director: Election": 21,
    "reconcile: Controller": 13,
    "reconcile: Ledger": 17,
    "watchers: HttpClient": 13,
    "watchers: Reflector": 21,
}
"""Classes with more than `ATTRIBUTES`, by room and name, so that a row survives a move within the room."""
MANY_ARGUMENTS: dict[str, int] = {
    "director: Election": 10,
}
LONG_FUNCTIONS: dict[str, int] = {}
SHARED_STATE: set[str] = set()
"""Module-level names that one module changes while another reads them."""
CHANGED_FROM_OUTSIDE: set[str] = set()
"""Rooms in which a module changes a dict, a list or a set of another module's object, and the attribute."""
PRIVATE_NAMES_ELSEWHERE: set[str] = set()
"""Rooms that read a private name of another module, and the name."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A parsed module of kroute."""

    name: str
    room: str
    lines: list[str]
    tree: ast.Module
    nodes: list[ast.AST]


def test_a_class_has_few_attributes() -> None:
    counts = [(name, len(attributes(node))) for name, node in classes_with_behaviour()]
    assert beyond(counts, ATTRIBUTES, MANY_ATTRIBUTES) == []


def test_a_constructor_takes_few_arguments() -> None:
    counts = [(name, constructor_arguments(node)) for name, node in classes_with_behaviour()]
    assert beyond(counts, CONSTRUCTOR_ARGUMENTS, MANY_ARGUMENTS) == []


def test_a_function_is_short() -> None:
    counts = [
        (f"{module.room}: {name}", lines_of_code(node, module.lines))
        for module in modules()
        for name, node in definitions(module.tree.body)
        if not isinstance(node, ast.ClassDef)
    ]
    assert beyond(counts, FUNCTION_LINES, LONG_FUNCTIONS) == []


def test_modules_share_no_state() -> None:
    assert shared_state() ^ SHARED_STATE == set()


def test_no_module_changes_a_container_of_an_object_of_another() -> None:
    assert changed_from_outside() ^ CHANGED_FROM_OUTSIDE == set()


def test_no_module_reads_a_private_name_of_another() -> None:
    assert private_names_elsewhere() ^ PRIVATE_NAMES_ELSEWHERE == set()


def beyond(counts: Iterable[tuple[str, int]], limit: int, exceptions: Mapping[str, int]) -> list[str]:
    """What breaks the limit without being an exception, and the exceptions that are not needed."""
    over = [(name, count) for name, count in counts if count > limit]
    broken = [f"{name}: {count}" for name, count in over if count > exceptions.get(name, limit)]
    return broken + [f"{name}: not needed any more" for name in exceptions.keys() - {name for name, _ in over}]


@cache
def modules() -> list[Module]:
    parsed = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text()
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        name, tree = ".".join(parts).removesuffix(".__init__"), ast.parse(text)
        parsed.append(Module(name, parts[1], text.splitlines(), tree, [*ast.walk(tree)]))
    return parsed


def definitions(body: Iterable[ast.AST], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """The functions and classes with their qualified names, nested ones too."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield prefix + name, node
                yield from definitions(node.body, f"{prefix}{name}.")
            case ast.stmt():
                yield from definitions(ast.iter_child_nodes(node), prefix)


@cache
def classes_with_behaviour() -> list[tuple[str, ast.ClassDef]]:
    """Every class but the records, which are those that stand below one of `RECORDS`."""
    classes = [
        (f"{module.room}: {name}", node)
        for module in modules()
        for name, node in definitions(module.tree.body)
        if isinstance(node, ast.ClassDef)
    ]
    records, more = set(RECORDS), True
    while more:
        below = {node.name for _, node in classes if any(last_name(base) in records for base in node.bases)}
        more = not below <= records
        records |= below
    return [(name, node) for name, node in classes if node.name not in records]


def last_name(node: ast.expr) -> str:
    """`Struct` of `msgspec.Struct`, and `Controller` of `Controller[K, V]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return last_name(value)
    return ""


def attributes(node: ast.ClassDef) -> set[str]:
    """What the methods assign to `self`, and what the body declares."""
    declared = {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and last_name(statement.annotation) != "ClassVar"
    }
    return declared | {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and is_self(part.value)
    }


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def constructor_arguments(node: ast.ClassDef) -> int:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            arguments = statement.args
            return len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
    return 0


def lines_of_code(function: Function, lines: list[str]) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if not body or function.end_lineno is None:
        return 0
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#")
        for line in lines[body[0].lineno - 1 : function.end_lineno]
    )


def shared_state() -> set[str]:
    """Names of module-level variables that some function changes, and that another module imports."""
    changed, readers = set(), defaultdict(set)
    for module in modules():
        imported = imported_names(module)
        own = {name: f"{module.name}.{name}" for name in module_level_names(module)}
        for name in imported.values():
            readers[name].add(module.name)
        changed |= {(own | imported)[name] for name in names_changed_in_functions(module) if name in own | imported}
    return {name for name in changed if readers[name]}


def imported_names(module: Module) -> dict[str, str]:
    """What kroute's other modules give to this one: the name here, and the full name."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name)
        for alias in node.names
    }


def module_level_names(module: Module) -> set[str]:
    return {
        part.id
        for statement in module.tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def names_changed_in_functions(module: Module) -> Iterator[str]:
    for _, function in definitions(module.tree.body):
        for node in ast.walk(function):
            match node:
                case ast.Global(names=names):
                    yield from names
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in CHANGING_METHODS:
                    yield name
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                    yield name
                case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                    yield name


def changed_from_outside() -> set[str]:
    """Public containers that a module changes in objects with behaviour, whose module it imports from."""
    behaving = {node for _, node in classes_with_behaviour()}
    owners = defaultdict(set)
    for module in modules():
        for _, node in definitions(module.tree.body):
            for name in containers(node) if node in behaving else ():
                owners[name].add(module.name)
    found = set()
    for module in modules():
        known = {full.rpartition(".")[0] for full in imported_names(module).values()}
        changed = set(attributes_changed(module))
        found |= {
            f"{module.room}: {name}" for name in changed if owners[name] & known and module.name not in owners[name]
        }
    return found


def containers(node: ast.AST) -> Iterator[str]:
    """The public attributes to which the class assigns an empty or filled dict, list, set or deque."""
    for part in ast.walk(node):
        match part:
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Attribute(value=owner, attr=name), value=ast.expr() as value):
                pass
            case _:
                continue
        is_container = isinstance(value, ast.Dict | ast.List | ast.Set) or (
            isinstance(value, ast.Call) and last_name(value.func) in CONTAINERS
        )
        if is_self(owner) and is_container and not name.startswith("_"):
            yield name


def attributes_changed(module: Module) -> Iterator[str]:
    """The attributes of other objects than `self` that the module changes in place."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner, attr=name), attr=method)):
                is_changed = method in CHANGING_METHODS
            case ast.Subscript(value=ast.Attribute(value=owner, attr=name), ctx=ast.Store() | ast.Del()):
                is_changed = True
            case ast.AugAssign(target=ast.Attribute(value=owner, attr=name)):
                is_changed = True
            case _:
                continue
        if is_changed and not is_self(owner):
            yield name


def private_names_elsewhere() -> set[str]:
    """Private names that a module reads, from another module or of an object, and does not define itself."""
    found = set()
    for module in modules():
        own = private_names_defined(module)
        for node in module.nodes:
            match node:
                case ast.ImportFrom(names=aliases):
                    read = [alias.name for alias in aliases]
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    read = [name]
                case _:
                    continue
            found |= {f"{module.room}: {name}" for name in read if is_private(name) and name not in own}
    return found


def private_names_defined(module: Module) -> set[str]:
    defined = {name.rpartition(".")[2] for name, _ in definitions(module.tree.body)}
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
    return defined


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE_METHODS
