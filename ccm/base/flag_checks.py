"""Checks that several flags share; see `ccm.base.flags.Check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

_HIGHEST_PORT = 65535


def positive(value: timedelta) -> str:
    """A duration above zero."""
    return "" if value > timedelta(0) else "must be longer than 0s"


def not_negative(value: timedelta) -> str:
    """A duration of zero or more."""
    return "" if value >= timedelta(0) else "must be 0s or longer"


def at_least_one(value: int) -> str:
    """How many of something work at once, or a budget: with none nothing would ever be done."""
    return "" if value >= 1 else "{name} must be a positive number"


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


def one_of(*words: str) -> Callable[[str], str]:
    """One word of a few."""
    *most, last = (f'"{word}"' for word in words)
    right = f"must be {', '.join(most)} or {last}"
    return lambda value: "" if value in words else right
