"""Reads in a provider's source what it offers, without running it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

from ccm.cloud.interface import Cloud
from ccm.cloud.registry import Opener

FIELDS = tuple(field.name for field in dataclasses.fields(Cloud))
"""What a provider may say about its cloud."""

UNKNOWN = object()
"""A value that only running the provider would tell; it is not None."""


def read(opener: Opener) -> Mapping[str, Any] | None:
    """The arguments of the one call that makes the provider's `Cloud`; None: none was found.

    An argument that is a constant of the module, or of one it imports, is that value; any
    other is `UNKNOWN`.
    """
    function = inspect.unwrap(opener)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _makes_cloud(node)]
    if len(calls) != 1 or any(keyword.arg is None for keyword in calls[0].keywords):
        return None
    names = getattr(function, "__globals__", {})
    return {
        keyword.arg: _value(keyword.value, names)
        for keyword in calls[0].keywords
        if keyword.arg is not None
    }


def _makes_cloud(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func
    return (name.id if isinstance(name, ast.Name) else name) == Cloud.__name__


def _value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    match expression:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names.get(name, UNKNOWN)
        case ast.Attribute(value=owner, attr=name):
            found = _value(owner, names)
            return UNKNOWN if found is UNKNOWN else getattr(found, name, UNKNOWN)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            values = tuple(_value(part, names) for part in parts)
            return UNKNOWN if UNKNOWN in values else values
        case _:
            return UNKNOWN
