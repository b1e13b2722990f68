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
        owner: with `ADOPT`, `NAMESPACE/NAME` of the Service.
        dry_run: whether the change is only described.
    """

    action: str
    name: str = ""
    owner: str = ""
    dry_run: bool = False


class JournalResponse(DaemonResponse, frozen=True, kw_only=True):
    """Content of the journal, or the result of a change.

    Attributes:
        down: error that makes the journal unavailable, and its time; empty = no error is known.
        entries: all entries, the oldest first; none in the response to a change.
        orphans: entry name -> message about the orphan, for each orphan of the last search.
        done: lines that describe the effect of a change, or its effect without `dry_run`.
    """

    down: str = ""
    entries: list[JournalEntry] = msgspec.field(default_factory=list)
    orphans: dict[str, str] = msgspec.field(default_factory=dict)
    done: list[str] = msgspec.field(default_factory=list)
