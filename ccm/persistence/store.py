"""What a backend really has to write: bytes in, bytes out. `engine` makes a provider of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ccm.persistence.envelope import Entry
from ccm.persistence.errors import Fenced, VersionConflict
from ccm.persistence.interface import ABSENT, GVK, Expected, Version
from ccm.persistence.objects import Place


class Claim(NamedTuple):
    """Who opens a store.

    Attributes:
        cluster_uid: whose data it is to hold.
        epoch: of the leader that opens it.
    """

    cluster_uid: str
    epoch: int


class Record(NamedTuple):
    """An envelope and its version as the store has it."""

    body: bytes
    version: Version


Page: TypeAlias = Sequence[tuple[Place, Record]]


class Store(Protocol):
    """One instance of storage. Nothing but these errors may leave it:

    `BackendUnavailable` when it could not be done now, `BackendDead` from `open` when it never
    will, `VersionConflict` and `Fenced` from `write` and `remove`. All are called within a
    deadline and may be cancelled at any point; a write that was cut has happened in full or not
    at all.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """As found by `open`."""

    async def open(self, claim: Claim) -> None:
        """Make it ready, see that it can be written, remove what an earlier end left over.

        Called again after it failed with `BackendUnavailable`.
        """

    async def probe(self) -> None:
        """Whether it works now."""

    async def read(self, place: Place) -> Record | None:
        """What is there."""

    async def write(self, place: Place, entry: Entry, expect: Expected) -> Version:
        """Replace what is there, durably; the version as the store has it."""

    async def remove(self, place: Place, epoch: int) -> None:
        """Remove what is there, durably; silent when it is absent."""

    def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """All of a kind, page by page."""

    async def close(self) -> None:
        """Let go of everything; nothing is under way. Called once, also if `open` failed."""


def check_expected(expect: Expected, found: Version | None) -> None:
    """Compare before a write.

    Raises:
        VersionConflict: something else is there than was expected.
    """
    if expect is None:
        return
    if (expect is ABSENT and found is not None) or (expect is not ABSENT and found != expect):
        raise VersionConflict("somebody else wrote the object meanwhile")


def check_epoch(held: int, epoch: int) -> None:
    """Compare before a write.

    Raises:
        Fenced: a newer leader was here.
    """
    if held > epoch:
        raise Fenced(
            f"a leader of epoch {held} has written, ours is {epoch}: another leads, or the Lease "
            "was made anew (see the recovery guide)"
        )
