"""The structure of the package in numbers: what a newcomer has to find the way through."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from einsql.session import script

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "einsql"
RESULT_WORDS = {"found", "made", "held", "told", "given", "whole"}
"""Names of local variables that say nothing of what they hold."""
KINDS_IN_SQL = {
    "einsql.frontends.console.completion",
    "einsql.frontends.console.commands.catalog",
    "einsql.frontends.console.commands.dump",
    "einsql.frontends.console.objects",
    "einsql.frontends.harlequin",
    "einsql.frontends.sqlalchemy.reflection",
    "einsql.planner.planner",
    "einsql.session.statements.ddl",
    "einsql.storage.database.catalog_reader",
    "einsql.storage.objects",
}
"""Modules that compare the kinds of objects that DROP and the catalog of a file name."""


@cache
def _texts() -> dict[str, str]:
    """The text of every module by its dotted name."""
    texts = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        texts[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return texts


@cache
def _trees() -> dict[str, ast.Module]:
    """The syntax tree of every module."""
    return {name: ast.parse(text) for name, text in _texts().items()}


@cache
def _nodes() -> dict[type[ast.AST], list[tuple[str, Any]]]:
    """The nodes of all trees by their class, each with the name of its module."""
    nodes: dict[type[ast.AST], list[tuple[str, Any]]] = defaultdict(list)
    for name, tree in _trees().items():
        for node in ast.walk(tree):
            nodes[type(node)].append((name, node))
    return nodes


@pytest.fixture(autouse=True, scope="module")
def _memory() -> Iterator[None]:
    """The trees take hundreds of megabytes, so later tests run without them."""
    yield
    _nodes.cache_clear()
    _trees.cache_clear()


@cache
def _edges() -> dict[str, set[str]]:
    """The other modules of the package that each module imports, also lazily and for types."""
    edges: dict[str, set[str]] = {name: set() for name in _texts()}
    for name, node in _nodes()[ast.ImportFrom]:
        if (node.module or "").startswith("einsql"):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            edges[name] |= {target if target in edges else node.module for target in full}
    for name, node in _nodes()[ast.Import]:
        edges[name] |= {alias.name for alias in node.names if alias.name in edges}
    return {name: targets - {name} for name, targets in edges.items()}


def test_no_module_imports_itself_through_others() -> None:
    """Lazy imports and imports for types count, too."""
    TopologicalSorter(_edges()).prepare()  # raises an error that names a circle


def test_no_two_packages_of_a_room_import_each_other() -> None:
    pairs = set()
    for name, targets in _edges().items():
        for target in targets:
            (mine, theirs) = (n.split(".")[1:3] for n in (name, target))
            if len(mine) == len(theirs) == 2 and mine[0] == theirs[0] and mine != theirs:
                folders = (PACKAGE.joinpath(*mine), PACKAGE.joinpath(*theirs))
                if all(f.is_dir() for f in folders):
                    pairs.add((tuple(mine), tuple(theirs)))
    assert [pair for pair in pairs if pair[::-1] in pairs] == []


def test_folders_are_small() -> None:
    folders = Counter(path.parent for path in PACKAGE.rglob("*.py"))
    rooms = [p for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert folders.pop(PACKAGE) <= 5
    assert len(rooms) <= 13
    assert max(folders.values()) <= 26


def test_few_imports_stand_in_functions() -> None:
    functions = [*_nodes()[ast.FunctionDef], *_nodes()[ast.AsyncFunctionDef]]
    lines: dict[str, set[int]] = defaultdict(set)
    for name, function in functions:
        lines[name] |= set(range(function.lineno, function.end_lineno + 1))
    assert (
        sum(
            node.lineno in lines[name]
            for name, node in _nodes()[ast.ImportFrom]
            if (node.module or "").startswith("einsql")
        )
        <= 80
    )


def test_private_attributes_stay_private() -> None:
    count = 0
    for _, node in _nodes()[ast.Attribute]:
        if isinstance(node.value, ast.Name) and node.value.id not in ("self", "cls"):
            count += node.attr.startswith("_") and not node.attr.startswith("__")
    assert count <= 60


def test_only_session_and_frontends_take_a_connection() -> None:
    for name, modules in _edges().items():
        if name.split(".")[1:2] in ([], ["session"], ["frontends"], ["tra"]):
            continue
        assert not modules & {"einsql.session.connection", "einsql.session.cursor"}, name


def test_variables_say_what_they_hold() -> None:
    names = Counter(n.id for _, n in _nodes()[ast.Name] if isinstance(n.ctx, ast.Store))
    assert sum(names[word] for word in RESULT_WORDS) <= 320


def _kinds_of_fields() -> set[str]:
    """Names of the classes of fields: `Fields`, `Sparse`, and all that inherit from them."""
    classes = [node for _, node in _nodes()[ast.ClassDef]]
    kinds = {"Fields", "Sparse"}
    known = 0
    while known < len(kinds):
        known = len(kinds)
        kinds |= {c.name for c in classes if kinds & _names_in(*c.bases)}
    return kinds


def _names_in(*nodes: ast.AST) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def test_fields_are_asked_rather_than_their_classes() -> None:
    """`isinstance`, patterns of `match` and `type(…) is` count; comparisons with `dict` do not."""
    kinds, asked = _kinds_of_fields(), 0
    assert {"LocalFields", "RemoteFields", "PlacedFields", "RankFields", "SparseFields"} <= kinds
    for _, node in _nodes()[ast.Call]:
        if _names_in(node.func) & {"isinstance", "issubclass"}:
            asked += bool(kinds & _names_in(*node.args[1:]))
    for _, node in _nodes()[ast.MatchClass]:
        asked += bool(kinds & _names_in(node.cls))
    for _, node in _nodes()[ast.Compare]:
        asked += bool(kinds & _names_in(*node.comparators))
    assert asked <= 15


def _is_number(node: ast.expr | None) -> bool:
    """Whether an expression has only numbers: a literal, arithmetic or a tuple of such."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Tuple) and node.elts != [] and all(map(_is_number, node.elts))


def _unexplained_numbers(text: str, body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Line and name of the numeric constants that have neither a docstring nor a comment."""
    lines = text.splitlines()
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not _is_number(node.value):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        docstring = (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        )
        # A number contains no "#", so one begins a comment.
        comments = " ".join(re.findall("#.*", "\n".join(lines[node.lineno - 1 : node.end_lineno])))
        if (
            isinstance(target, ast.Name)
            and target.id.isupper()
            and not docstring
            and not re.sub(r"# (fmt|noqa|type|pragma)\b[^#]*", "", comments).strip()
        ):
            yield node.lineno, target.id


def test_numeric_constants_have_a_unit_and_a_reason() -> None:
    """The failure lists each constant without a docstring below it or a comment on its line."""
    missing = [
        f"{module}:{line}: {name}"
        for module, text in _texts().items()
        for line, name in _unexplained_numbers(text, _trees()[module].body)
    ]
    assert missing == [], "\n".join(["", *missing])


def test_strings_encode_no_kinds() -> None:
    """Kinds are classes or enumerations; NumPy's kinds of dtypes are letters."""
    comparing = {
        name
        for name, node in _nodes()[ast.Compare]
        if isinstance(node.left, ast.Attribute) and node.left.attr == "kind"
        for op, side in zip(node.ops, node.comparators, strict=True)
        if not (isinstance(op, ast.In | ast.NotIn) and isinstance(side, ast.Constant))
        for leaf in ast.walk(side)
        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str) and len(leaf.value) > 1
    }
    assert comparing <= KINDS_IN_SQL


def test_names_encode_no_kinds() -> None:
    """The class of an input says what it is, and its name is only printed and looked up."""
    marks = ("?", " (table)", "RANGE(", "ZEROS<")
    tests = [
        (name, ast.unparse(node))
        for name, node in _nodes()[ast.Call]
        if isinstance(node.func, ast.Attribute)
        if node.func.attr in ("startswith", "endswith", "removeprefix", "removesuffix")
        if any(isinstance(a, ast.Constant) and a.value in marks for a in node.args)
    ]
    assert tests == []


def test_the_formatter_formats() -> None:
    assert sum(text.count("# fmt: skip") for text in _texts().values()) <= 60


def test_one_function_shows_the_way_of_a_statement() -> None:
    source = inspect.getsource(script.run_statement).rstrip()
    assert len(source.splitlines()) <= 40
    for step in ("parse", "bind", "prepare", "run"):
        assert re.search(rf"\b{step}\b", source), step
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    assert source in page
