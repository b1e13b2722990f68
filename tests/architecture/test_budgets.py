"""The report on sizes measures what it says."""

from __future__ import annotations

import ast

from tests.architecture import budgets


def test_a_docstring_does_not_count_as_length() -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)

    assert budgets.function_lines(function) == 3
