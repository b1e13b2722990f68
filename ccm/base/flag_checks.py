"""Checks that several flags share; see `ccm.base.flags.Check`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta

_HIGHEST_PORT = 65535

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(
    rf"((?=.{{1,253}}/){_LABEL}(\.{_LABEL})*/)?(?=.{{1,63}}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
"""What Kubernetes calls a qualified name, as of labels and classes."""

_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_NAME = 253


def positive(value: timedelta) -> str:
    """A duration above zero."""
    return "" if value > timedelta(0) else "must be longer than 0s"


def not_negative(value: timedelta) -> str:
    """A duration of zero or more."""
    return "" if value >= timedelta(0) else "must be 0s or longer"


def at_least_one(value: int) -> str:
    """How many of something work at once, or a budget: with none nothing would ever be done."""
    return "" if value >= 1 else "must be 1 or more"


def zero_or_more(zero: str = "") -> Callable[[float], str]:
    """A number that is not negative; `zero` says what 0 means."""
    right = f"must be 0 ({zero}) or more" if zero else "must be 0 or more"
    return lambda value: "" if 0 <= value < float("inf") else right


def port(value: int) -> str:
    """A TCP port, or 0."""
    right = f"must be from 0 (no server) to {_HIGHEST_PORT}"
    return "" if 0 <= value <= _HIGHEST_PORT else right


def no_blanks(what: str) -> Callable[[Iterable[str]], str]:
    """A list without empty entries; `what` names one of them."""
    right = f"{what} cannot be empty or white space"
    return lambda entries: "" if all(entry.strip() for entry in entries) else right


def qualified(what: str) -> Callable[[Iterable[str]], str]:
    """A list of names such as `a` or `example.com/a`; `what` says of what."""

    def check(entries: Iterable[str]) -> str:
        wrong = next((entry for entry in entries if not _QUALIFIED.fullmatch(entry)), None)
        return "" if wrong is None else f"{wrong!r} is no {what}; it must look like {_LIKE}"

    return check


_LIKE = "internal or example.com/internal"


def is_object_name(text: str) -> bool:
    """Whether Kubernetes takes it for the name of an object (a DNS subdomain)."""
    return len(text) <= _LONGEST_NAME and _OBJECT_NAME.fullmatch(text) is not None


def one_of(*words: str) -> Callable[[str], str]:
    """One word of a few."""
    *most, last = (f'"{word}"' for word in words)
    right = f"must be {', '.join(most)} or {last}"
    return lambda value: "" if value in words else right
