"""Lists and their pages: selecting, cutting, and what to say when a page has expired."""

from __future__ import annotations

import dataclasses

from ccm.sandbox.apiserver import errors, query
from ccm.sandbox.apiserver import store as stores


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A list or one page of it, as of `revision`; `remaining` None = not counted."""

    entries: list[stores.Entry]
    revision: int
    next_token: str = ""
    remaining: int | None = None


def cut(entries: list[stores.Entry], revision: int, options: query.ListOptions) -> Page:
    """The selected entries, or the first of them and where the rest begins."""
    selector = options.selector
    if not selector.is_empty:
        entries = [entry for entry in entries if selector.matches(entry.labels, entry.fields)]
    limit = options.limit if options.revision != 0 else 0
    if not limit or len(entries) <= limit:
        return Page(entries=entries, revision=revision)
    following = query.Continue(rv=revision, start=entries[limit - 1].key + "\0")
    return Page(
        entries=entries[:limit],
        revision=revision,
        next_token=following.token(),
        remaining=len(entries) - limit if selector.is_empty else None,
    )


def expired(*, paged: bool) -> errors.ApiError:
    """The answer to a list or page at a revision that is no longer kept."""
    if not paged:
        return errors.expired("The resourceVersion for the provided list is too old.")
    return errors.expired(
        "The provided continue parameter is too old to display a consistent list result. You "
        "can start a new list without the continue parameter."
    )
