"""Modules and functions that outgrew their budget: a report, not a rule.

`python -m tests.architecture.budgets` prints one line each. A module is split by
reason to change, never by size alone, so nothing fails here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, modules, place, tree

MODULE_LINES = 400
FUNCTION_LINES = 50


def over_budget(paths: list[Path]) -> Iterator[str]:
    """One line for each module or function that is too long."""
    for path in paths:
        lines = len(path.read_text().splitlines())
        if lines > MODULE_LINES:
            yield f"{path.relative_to(ROOT)}: {lines} lines (budget {MODULE_LINES})"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = function_lines(node)
                if length > FUNCTION_LINES:
                    yield f"{place(path, node)}: {node.name} {length} lines ({FUNCTION_LINES})"


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def main() -> int:
    """Print the report."""
    found = list(over_budget(list(modules("ccm", "providers"))))
    print("\n".join(found) or "every module and function is within its budget")
    return 0


if __name__ == "__main__":
    sys.exit(main())
