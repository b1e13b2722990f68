"""The query parameters of list, watch and write requests, parsed and judged."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Iterator, Mapping

import msgspec

from ccm.sandbox.apiserver import errors, kinds, selectors

EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"


class Continue(msgspec.Struct, frozen=True, kw_only=True):
    """Where the next page of a list starts: the revision of the list, and the last key."""

    v: str = "meta.k8s.io/v1"
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
        except (binascii.Error, msgspec.DecodeError, ValueError) as error:
            raise errors.bad_request(
                f"invalid continue token: continue key is not valid: {error}"
            ) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """What a list or watch asks for.

    `revision` is None when no resourceVersion was given; `limit` 0 means no limit;
    `timeout_s` None means that the client leaves it to the server.
    """

    selector: selectors.Selector = dataclasses.field(default_factory=selectors.Selector)
    revision: int | None = None
    match: str = ""
    limit: int = 0
    page: Continue | None = None
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout_s: float | None = None

    @property
    def is_exact(self) -> bool:
        """True if the list must be as it was at `revision`."""
        implied = not self.match and self.limit > 0 and bool(self.revision)
        return self.match == EXACT or implied


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How a write treats unknown fields, whether it is a trial, and who writes."""

    field_validation: str = "Warn"
    dry_run: bool = False
    field_manager: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """The preconditions of a deletion; empty ones hold always."""

    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def list_options(kind: kinds.Kind, query: Mapping[str, str]) -> ListOptions:
    """The options of a list or watch of that kind.

    Raises:
        ApiError: a parameter is malformed, or two do not go together.
    """
    try:
        selector = selectors.parse(
            kind, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
    except selectors.BadSelectorError as error:
        raise errors.bad_request(str(error)) from error
    initial = query.get("sendInitialEvents")
    options = ListOptions(
        selector=selector,
        revision=_revision(query.get("resourceVersion", "")),
        match=query.get("resourceVersionMatch", ""),
        limit=_integer(query, "limit"),
        page=Continue.parse(query["continue"]) if query.get("continue") else None,
        watch=is_watch(query),
        bookmarks=_boolean(query.get("allowWatchBookmarks", "")),
        initial_events=None if initial is None else _boolean(initial),
        timeout_s=_integer(query, "timeoutSeconds") or None,
    )
    causes = list(_faults(options))
    if causes:
        raise errors.invalid_options(causes)
    return options


def is_watch(query: Mapping[str, str]) -> bool:
    """Whether a list shall go on as a watch."""
    return _boolean(query.get("watch", ""))


def write_options(query: Mapping[str, str]) -> WriteOptions:
    """The options of a create, update or patch.

    Raises:
        ApiError: a parameter has a value that is not allowed.
    """
    validation = query.get("fieldValidation") or "Warn"
    dry_run = query.get("dryRun", "")
    causes = []
    if validation not in ("Ignore", "Warn", "Strict"):
        choices = ("Ignore", "Strict", "Warn")
        causes.append(errors.not_supported("fieldValidation", validation, choices))
    if dry_run not in ("", "All"):
        causes.append(errors.not_supported("dryRun", [dry_run], ("All",)))
    if causes:
        raise errors.invalid_options(causes)
    return WriteOptions(
        field_validation=validation,
        dry_run=dry_run == "All",
        field_manager=query.get("fieldManager", ""),
    )


def _faults(options: ListOptions) -> Iterator[errors.Cause]:
    """What does not go together in a list or a watch."""
    match, initial = options.match, options.initial_events is not None
    rules = (
        (options.watch and initial and match != NOT_OLDER_THAN,
         f"sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"),
        (options.watch and match and not initial,
         "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"),
        (not options.watch and match and options.revision is None,
         "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (not options.watch and match and options.page,
         "resourceVersionMatch is forbidden when continue is provided"),
        (not options.watch and match == EXACT and options.revision == 0,
         'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'),
        (not options.watch and initial, "sendInitialEvents is forbidden for list"),
    )  # fmt: skip
    for broken, text in rules:
        if broken:
            yield errors.forbidden_field("resourceVersionMatch", text)
    choices = (NOT_OLDER_THAN,) if options.watch else (EXACT, NOT_OLDER_THAN)
    if match and match not in choices:
        yield errors.not_supported("resourceVersionMatch", match, choices)


def _revision(text: str) -> int | None:
    if not text:
        return None
    if re.fullmatch(r"\d+", text) is None:
        raise errors.ApiError(500, "", f'resourceVersion: Invalid value: "{text}"')
    return int(text)


def _integer(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "") or "0"
    if re.fullmatch(r"\d+", text) is None:
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _boolean(text: str) -> bool:
    return text.lower() not in ("", "0", "false")
