"""The query parameters of list, watch and write requests, parsed and judged."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec

from ccm.model.selectors import BadSelectorError
from ccm.sandbox.apiserver import errors, kinds, selectors

EXACT: Literal["Exact"] = "Exact"
NOT_OLDER_THAN: Literal["NotOlderThan"] = "NotOlderThan"

Count = Annotated[int, msgspec.Meta(ge=0)]
_OURS = ("selector", "page")
_Options = TypeVar("_Options", bound=msgspec.Struct)


class Continue(msgspec.Struct, frozen=True, kw_only=True):
    """Where the next page of a list starts: the revision of the list, and the last key."""

    rv: int
    start: str

    def token(self) -> str:
        """The opaque form that clients hand back."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @staticmethod
    def parse(token: str) -> Continue:
        """A token that `token` made.

        Raises:
            ApiError: it is not one.
        """
        try:
            plain = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            return msgspec.json.decode(plain, type=Continue)
        except (msgspec.DecodeError, ValueError) as error:
            raise errors.bad_request(f"invalid continue token: {error}") from error


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a list or watch asks for.

    `revision` is None when no resourceVersion was given; `limit` 0 means no limit;
    `timeout_s` None means that the client leaves it to the server.
    """

    selector: selectors.Selector = selectors.Selector()
    page: Continue | None = None
    revision: Count | None = msgspec.field(name="resourceVersion", default=None)
    match: Literal["", "Exact", "NotOlderThan"] = msgspec.field(
        name="resourceVersionMatch", default=""
    )
    limit: Count = 0
    watch: bool = False
    bookmarks: bool = msgspec.field(name="allowWatchBookmarks", default=False)
    initial_events: bool | None = msgspec.field(name="sendInitialEvents", default=None)
    timeout_s: Count | None = msgspec.field(name="timeoutSeconds", default=None)

    @property
    def is_exact(self) -> bool:
        """True if the list must be as it was at `revision`."""
        implied = not self.match and self.limit > 0 and bool(self.revision)
        return self.match == EXACT or implied


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a write treats unknown fields, whether it is a trial, and who writes."""

    field_validation: Literal["Ignore", "Warn", "Strict"] = "Warn"
    dry_run: Literal["", "All"] = ""
    field_manager: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """The preconditions of a deletion; empty ones hold always. `grace_s` is for Pods."""

    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False
    grace_s: int | None = None


def list_options(kind: kinds.Kind, query: Mapping[str, str]) -> ListOptions:
    """The options of a list or watch of that kind.

    Raises:
        ApiError: a parameter is malformed, or two do not go together.
    """
    words = (query.get("labelSelector", ""), query.get("fieldSelector", ""))
    try:
        selector = selectors.parse(kind, *words)
    except BadSelectorError as error:
        raise errors.bad_request(str(error)) from error
    page = Continue.parse(query["continue"]) if query.get("continue") else None
    found = msgspec.structs.replace(_read(ListOptions, query), selector=selector, page=page)
    has_initial = found.initial_events is not None
    if found.watch:
        is_broken = found.match != (NOT_OLDER_THAN if has_initial else "")
        why = f"in a watch goes with sendInitialEvents, and is {NOT_OLDER_THAN} then"
    else:
        is_placed = bool(found.revision) or (found.revision == 0 and found.match != EXACT)
        is_broken = has_initial or (found.match != "" and (page is not None or not is_placed))
        why = "in a list needs a resourceVersion, and neither continue nor sendInitialEvents"
    if is_broken:
        raise errors.invalid_options([errors.forbidden_field("resourceVersionMatch", why)])
    return found


def write_options(query: Mapping[str, str]) -> WriteOptions:
    """The options of a create, update or patch.

    Raises:
        ApiError: a parameter has a value that is not allowed.
    """
    return _read(WriteOptions, query)


def _read(wanted: type[_Options], query: Mapping[str, str]) -> _Options:
    given = {name: text for name, text in query.items() if text and name not in _OURS}
    try:
        return msgspec.convert(given, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise errors.bad_request(str(error)) from error
