"""Sizes that one can read: of files, and of most functions."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import ROOT, modules, tree

pytestmark = pytest.mark.xdist_group("syntax trees")

FILE_LINES = 450
FUNCTION_LINES = 22
"""Lines without docstring within which 95 of 100 functions stay."""


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def test_no_file_is_too_long_to_be_read_in_one_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in modules("ccm", "providers", "tests")
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }

    assert long == {}


def test_most_functions_fit_on_a_screen() -> None:
    lengths = sorted(
        function_lines(node)
        for path in modules("ccm", "providers")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )

    assert lengths[len(lengths) * 95 // 100] <= FUNCTION_LINES


def test_a_docstring_does_not_count_as_length() -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)

    assert function_lines(function) == 3
