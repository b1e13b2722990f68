"""Reads the faults and applies them."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent


class InvalidMutant(Exception):
    """A row that cannot be read or applied; the message says which and why."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault.

    Attributes:
        id: occurs once in all rooms.
        room: the TOML file it stands in, without its ending.
        fault: what would go wrong, in a sentence.
        file: which file is changed, from the top of the tree.
        before: text that occurs once in it.
        after: what is written in its place.
        tests: node IDs; at least one of them fails then.
    """

    id: str
    room: str
    fault: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file with the fault. Raises InvalidMutant if the place is not found exactly once."""
        found = text.count(self.before)
        if found != 1:
            raise InvalidMutant(f"{self.id}: `before` occurs {found} times in {self.file}")
        return text.replace(self.before, self.after)


def load(folder: Path = FOLDER) -> Sequence[Mutant]:
    """All faults, room by room.

    Raises:
        InvalidMutant: a file or a row cannot be read.
    """
    found: list[Mutant] = []
    for file in sorted(folder.glob("*.toml")):
        try:
            rows = tomllib.loads(file.read_text())
            named = [{**row, "id": id_, "room": file.stem} for id_, row in rows.items()]
            found += msgspec.convert(named, list[Mutant])
        except (ValueError, TypeError) as error:
            raise InvalidMutant(f"{file.name}: {error}") from error
    return found


def chosen(mutants: Sequence[Mutant], words: Sequence[str]) -> Sequence[Mutant]:
    """Those that a word names by ID, room or pattern; all without a word.

    Raises:
        InvalidMutant: a word names none.
    """
    picked: list[Mutant] = []
    for word in words or ("*",):
        named = [one for one in mutants if one.room == word or fnmatch.fnmatch(one.id, word)]
        if not named:
            raise InvalidMutant(f"{word!r} names no fault")
        picked += [one for one in named if one not in picked]
    return picked
