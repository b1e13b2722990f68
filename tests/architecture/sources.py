"""Files of the project for the architecture tests, each parsed once."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def project_files() -> Sequence[Path]:
    """Every file of the project that git tracks or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = (ROOT / name for name in sorted(set(listed.stdout.split("\0")) - {""}))
    return tuple(path for path in found if path.is_file())


def modules(*folders: str) -> Sequence[Path]:
    """Python files below top-level folders."""
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
    ]


@functools.cache
def tree(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(), filename=str(path))


def place(path: Path, node: ast.expr | ast.stmt) -> str:
    """`file:line`, to click on."""
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def texts(path: Path) -> Iterator[ast.Constant]:
    """Every string in a module that is not a docstring."""
    documented = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.add(node.value)
    for node in ast.walk(tree(path)):
        if node in documented or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str):
            yield node
