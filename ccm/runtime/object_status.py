"""Status of one object in the daemon, for `kube-ccm explain`.

A controller adds only the `ControllerFacts`; the other fields come from its queue, its back-off and
the blocked deletions. Times are seconds before or after the response, so that clock differences
between daemon and client do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ccm.base import redact
from ccm.cloud.errors import CloudError
from ccm.cloud.lookup import NodeOwnership
from ccm.model import Node
from ccm.model.meta import Wire
from ccm.runtime.deletions import BlockedDeletion

EXPLAIN_PATH = "/explain"
"""Path on the daemon's HTTPS server; the parameters `kind` and `name` name the object."""

JOURNAL_PATH = "/journal"
"""Path on the daemon's HTTPS server; see `ccm.runtime.journal_report`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFacts:
    """Facts about one object that only a controller knows.

    Attributes:
        plan: next action of the controller; empty: none.
        foreign: why the object belongs to another manager; empty: it belongs to this daemon.
        blocked: why the controller cannot execute the plan, apart from errors; empty: not blocked.
        awaited_secret: key of a Secret that another program writes and the controller waits for,
            as text, which may say what the Secret lacks; empty: none.
        key: queue key, if it differs from the object's key; else empty.
        next_s: seconds until the controller's next scheduled attempt outside of the queue; None:
            there is none.
    """

    plan: str = ""
    foreign: str = ""
    blocked: str = ""
    awaited_secret: str = ""
    key: str = ""
    next_s: float | None = None


FactsFunction = Callable[[str], ControllerFacts]
"""Function from the key of an object to its `ControllerFacts`."""


class LastReconcile(Wire, frozen=True, kw_only=True):
    """Outcome of the last reconcile of the object.

    Attributes:
        ago_s: seconds since the end of the reconcile.
        kind: class of the error; empty: the reconcile succeeded.
        text: text of the error, without secrets.
        since_s: seconds since the first of consecutive failures.
        not_yet: the reconcile succeeded but has to be repeated, because the object is not ready.
    """

    ago_s: float
    kind: str = ""
    text: str = ""
    since_s: float = 0.0
    not_yet: bool = False


class ControllerStatus(Wire, frozen=True, kw_only=True):
    """Status of one object in one controller: its `ControllerFacts` and the state of its queue key.

    Attributes:
        last: outcome of the last reconcile; None: no reconcile yet, or its outcome was dropped.
        in_work_s: seconds since a worker began to reconcile the key; None: no worker reconciles the
            key.
        next_s: seconds until the next attempt; 0: the key is queued; None: no attempt is scheduled.
        failures: number of consecutive failures.
    """

    controller: str
    plan: str = ""
    foreign: str = ""
    blocked: str = ""
    awaited_secret: str = ""
    last: LastReconcile | None = None
    in_work_s: float | None = None
    next_s: float | None = None
    failures: int = 0


class DaemonResponse(Wire, frozen=True, kw_only=True):
    """Common part of the responses about the daemon's state.

    Attributes:
        leads: whether this replica is the leader.
        opening: why the provider is not open; empty: the provider is open.
        fault: why the request was not carried out; empty: it was carried out.
    """

    leads: bool = False
    opening: str = ""
    fault: str = ""


class ExplainResponse(DaemonResponse, frozen=True, kw_only=True):
    """Everything the daemon knows about one object; response body of `EXPLAIN_PATH`.

    Attributes:
        provider: value of `--cloud-provider`.
        lease: fault of the lease; empty: no fault.
        api: resources that cannot be watched, and why; empty: all can be watched.
        accounts: status of the object in each running controller that handles its kind.
        absent: controllers that do not run -> reason.
        held: blocked deletions related to the object.
        journal: texts about the object's cloud resources in the journal, the oldest first.
    """

    kind: str
    name: str
    provider: str = ""
    lease: str = ""
    api: str = ""
    accounts: list[ControllerStatus] = msgspec.field(default_factory=list)
    absent: dict[str, str] = msgspec.field(default_factory=dict)
    held: list[BlockedDeletion] = msgspec.field(default_factory=list)
    journal: list[str] = msgspec.field(default_factory=list)


MAX_ERROR_TEXT_LENGTH = 300
"""Length limit of an error's text, in characters: each controller keeps thousands of texts, and the
error of a cloud may quote a whole response."""


def error_text(error: BaseException) -> str:
    """Return the text of an error as one printable line, redacted and truncated.

    See `MAX_ERROR_TEXT_LENGTH`.
    """
    text = str(error) if isinstance(error, CloudError) else f"{type(error).__name__}: {error}"
    text = " ".join(redact.mask_text(text).split())
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= MAX_ERROR_TEXT_LENGTH else f"{text[: MAX_ERROR_TEXT_LENGTH - 3]}..."


def foreign_reason(node: Node, ownership: NodeOwnership) -> str:
    """Return why a node belongs to another manager; empty: it belongs to this daemon."""
    if prefix := next(filter(node.provider_id.startswith, ownership.foreign_prefixes), ""):
        return (
            f"its provider ID {node.provider_id} belongs to another manager (this provider "
            f"ignores IDs that begin with {prefix})"
        )
    if ownership.has_foreign_id(node):
        ours = ", ".join(f"{scheme}://" for scheme in ownership.schemes)
        return f"its provider ID {node.provider_id} belongs to another cloud (expected: {ours})"
    if ownership.is_foreign(node):
        return "its labels do not match --node-selector"
    return ""
