"""Requests to the daemon about its journal, and the responses, for `kube-ccm journal`.

A GET of `JOURNAL_PATH` reads the journal. A POST, whose body is a `JournalChange`, changes it. Both
get a `JournalResponse`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ccm.model.meta import Wire
from ccm.persistence.journal import JournalEntry
from ccm.runtime.object_status import DaemonResponse

DROP, ADOPT, REBUILD = "drop", "adopt", "rebuild"
"""Values of `JournalChange.action`."""


def by_age(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Return the entries, the oldest first."""
    return sorted(entries, key=lambda entry: (entry.created_at, entry.name))


class JournalChange(Wire, frozen=True, kw_only=True):
    """Change of the journal that a user requests.

    Attributes:
        action: `DROP` deletes an entry, `ADOPT` gives a load balancer and its entry to another
            Service, `REBUILD` adds an entry for each listed resource without one.
        name: name of the entry; empty for `REBUILD`.
        kind: with `ADOPT`, kind of the new owner.
        owner: with `ADOPT`, `NAMESPACE/NAME` of the new owner.
        dry_run: whether the change is only described.
    """

    action: str
    name: str = ""
    kind: str = ""
    owner: str = ""
    dry_run: bool = False


class ReportedOrphan(Wire, frozen=True, kw_only=True):
    """Orphan that the last search found.

    Attributes:
        name: name of its entry.
        text: description, and what to do.
    """

    name: str
    text: str


class JournalResponse(DaemonResponse, frozen=True, kw_only=True):
    """Content of the journal, or the result of a change.

    Attributes:
        entries: all entries, the oldest first; none in the response to a change.
        orphans: orphans that the last search found.
        done: what a change did, or would do.
    """

    entries: list[JournalEntry] = msgspec.field(default_factory=list)
    orphans: list[ReportedOrphan] = msgspec.field(default_factory=list)
    done: list[str] = msgspec.field(default_factory=list)
