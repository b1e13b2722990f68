"""Lists and their pages: selecting, cutting, and what to say when a page has expired."""

from __future__ import annotations

import bisect
import dataclasses

from ccm.sandbox.apiserver import kinds, query, render
from ccm.sandbox.apiserver import store as stores


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A list or one page of it."""

    entries: list[stores.Entry]
    meta: render.ListMeta


def page(store: stores.Store, kind: kinds.Kind, namespace: str, options: query.ListOptions) -> Page:
    """The selected objects of a kind, of all namespaces if none is given.

    Raises:
        HistoryExpiredError: the wanted revision has expired.
    """
    exact = options.revision if options.is_exact else None
    revision = options.page.rv if options.page else exact or store.revision
    entries = store.collection(kind).at(revision)
    if options.page is not None:
        start = bisect.bisect_left(entries, options.page.start, key=lambda entry: entry.key)
        entries = entries[start:]
    if namespace:
        entries = [entry for entry in entries if entry.key.startswith(f"{namespace}/")]
    selector = options.selector
    if not selector.is_empty:
        entries = [entry for entry in entries if selector.matches(entry.labels, entry.fields)]
    limit = options.limit if options.revision != 0 else 0
    is_cut = 0 < limit < len(entries)
    following = query.Continue(rv=revision, start=entries[limit - 1].key + "\0") if is_cut else None
    meta = render.ListMeta(
        resource_version=str(revision),
        next_token=following.token() if following else "",
        remaining_item_count=len(entries) - limit if is_cut and selector.is_empty else None,
    )
    return Page(entries=entries[:limit] if is_cut else entries, meta=meta)
