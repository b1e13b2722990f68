"""Change one place of the product, named by function and operator, and run tests against it.

A place is `module:function operator`. Numbers count in the order of the source. Operators:

    condition#2=True    the second condition (if, while, conditional expression, comprehension)
    operand#1           the first operand of `and` and `or` is dropped
    bound#1             the first `<`, `<=`, `>`, `>=` includes its bound, or no longer does
    return=None         the function returns a constant at once
    keyword:uid         calls lose an argument
    call:stop           a statement that only calls or awaits `stop` does nothing
    value=0             a constant of the module has another value
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_LEFT_OUT = (".git", ".venv", ".cache", ".*_cache", ".hypothesis", "__pycache__", "dist")
_OTHER_BOUND = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


class NoSuchPlace(Exception):
    """A place is no longer in the code; the message names the missing part."""


def source_file(place: str) -> Path:
    return Path(place.partition(":")[0].replace(".", "/") + ".py")


def mutated(place: str, root: Path = ROOT) -> str:
    """Return the source of a module with one change. Raises NoSuchPlace."""
    target, _, operator = place.partition(" ")
    file = root / source_file(place)
    if not file.exists():
        raise NoSuchPlace(f"{place}: there is no {source_file(place)}")
    tree = ast.parse(file.read_text())
    before = ast.dump(tree)
    found = _named(tree, target.partition(":")[2].split("."))
    if found is None:
        raise NoSuchPlace(f"{place}: {file.name} has no such function")
    _apply(found, operator)
    if ast.dump(tree) == before:
        raise NoSuchPlace(f"{place}: the function has no such part")
    return ast.unparse(ast.fix_missing_locations(tree))


def _named(scope: ast.AST, path: Sequence[str]) -> ast.AST | None:
    for node in ast.iter_child_nodes(scope):
        name = getattr(node, "name", None)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = getattr(target, "id", None)
        if name == path[0]:
            return node if len(path) == 1 else _named(node, path[1:])
    return None


def _apply(found: ast.AST, operator: str) -> None:
    word, _, value = operator.partition("=")
    word, _, number = word.partition("#")
    word, _, name = word.partition(":")
    nth = slice(int(number or 1) - 1, int(number or 1))
    nodes = list(_walk(found))
    if word == "value" and isinstance(found, ast.Assign | ast.AnnAssign):
        found.value = ast.parse(value, mode="eval").body
    elif word == "return" and isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        found.body = [ast.Return(ast.parse(value, mode="eval").body)]
    elif word == "condition":
        for tests, index in list(_conditions(nodes))[nth]:
            tests[index] = ast.Constant(value == "True")
    elif word == "operand":
        lists = [node.values for node in nodes if isinstance(node, ast.BoolOp)]
        for values, operand in [(all_, one) for all_ in lists for one in all_][nth]:
            values.remove(operand)
    elif word == "bound":
        compares = [node for node in nodes if isinstance(node, ast.Compare)]
        for compare in [one for one in compares if type(one.ops[0]) in _OTHER_BOUND][nth]:
            compare.ops[0] = _OTHER_BOUND[type(compare.ops[0])]()
    elif word in ("keyword", "call"):
        _drop(nodes, word, name)


def _drop(nodes: Sequence[ast.AST], word: str, name: str) -> None:
    for node in nodes:
        if word == "keyword" and isinstance(node, ast.Call):
            node.keywords = [one for one in node.keywords if one.arg != name]
        elif word == "call" and isinstance(node, ast.Expr) and _called(node.value) == name:
            node.value = ast.Constant(None)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Visit nodes in the order of the source."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _conditions(nodes: Iterable[ast.AST]) -> Iterator[tuple[Any, Any]]:
    """Return where each condition is kept: a container and a key in it."""
    for node in nodes:
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield vars(node), "test"
        elif isinstance(node, ast.comprehension):
            yield from ((node.ifs, index) for index in range(len(node.ifs)))


def _called(value: ast.expr) -> str:
    call = value.value if isinstance(value, ast.Await) else value
    function = call.func if isinstance(call, ast.Call) else None
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


class Copy:
    """A copy of the tree in which tests import the copied product."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "tree"
        shutil.copytree(ROOT, self._root, ignore=shutil.ignore_patterns(*_LEFT_OUT))

    def survives(self, place: str, tests: Sequence[str]) -> bool:
        """Whether tests pass in spite of a change."""
        file = self._root / source_file(place)
        file.write_text(mutated(place))
        try:
            return self.passes(tests)
        finally:
            shutil.copy2(ROOT / source_file(place), file)

    def passes(self, tests: Sequence[str]) -> bool:
        """Whether tests pass; RuntimeError if they cannot be run."""
        environ = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
        # No compiled files: Python compares sources only by size and whole seconds.
        environ |= {"PYTHONPATH": str(self._root), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-qx", "--timeout=60", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *tests],
            cwd=self._root,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        return done.returncode == 0
