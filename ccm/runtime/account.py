"""What a daemon knows about one object, as it tells those who ask why nothing happens.

A controller says what only it can know (`Facts`); the rest is read where it is kept anyway: the
queue, the back-off, what is held back. Times are seconds before or after the answer, so that
nobody's clock matters.
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
from ccm.runtime.deletions import Held

PATH = "/explain"
"""Of the HTTPS server; the query names `kind` and `name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What only a controller knows of one object.

    Attributes:
        plan: what the controller would do about it now; empty: nothing.
        foreign: why it is not this daemon's; empty: it is.
        blocked: what keeps the plan from being carried out, apart from errors; empty: nothing.
        key: of the queue, if it is not the object's own.
        next_s: seconds until the controller looks again of its own accord.
    """

    plan: str = ""
    foreign: str = ""
    blocked: str = ""
    key: str = ""
    next_s: float | None = None


Explain = Callable[[str], Facts]
"""From the key of an object to what a controller says of it."""


class Last(Wire, frozen=True, kw_only=True):
    """How the last look of a controller at the object ended.

    Attributes:
        ago_s: when.
        kind: class of the error; empty: there was none.
        text: of the error, without secrets.
        since_s: how long it has failed without a success in between.
        not_yet: there was no error, and it was not done either.
    """

    ago_s: float
    kind: str = ""
    text: str = ""
    since_s: float = 0.0
    not_yet: bool = False


class Account(Wire, frozen=True, kw_only=True):
    """One controller's: its `Facts`, and how it stands with its work.

    Attributes:
        last: None: it did not look yet, or too long ago.
        in_work_s: for how long a worker has had it in hand; None: none has.
        next_s: seconds until the next try; 0: as soon as a worker is free; None: none is planned.
        failures: failures in a row.
    """

    controller: str
    plan: str = ""
    foreign: str = ""
    blocked: str = ""
    last: Last | None = None
    in_work_s: float | None = None
    next_s: float | None = None
    failures: int = 0


class Answer(Wire, frozen=True, kw_only=True):
    """All that a daemon knows about one object.

    Attributes:
        provider: its `--cloud-provider`.
        leads: whether this daemon works; else it stands by.
        lease: what is wrong with its lease; empty: nothing.
        opening: why the provider is not open; empty: it is.
        api: what of the cluster cannot be followed; empty: nothing.
        accounts: of the controllers that run and have to do with such objects.
        absent: controllers that do not run -> why.
        held: deletions held back that have to do with it.
    """

    kind: str
    name: str
    provider: str = ""
    leads: bool = False
    lease: str = ""
    opening: str = ""
    api: str = ""
    accounts: list[Account] = msgspec.field(default_factory=list)
    absent: dict[str, str] = msgspec.field(default_factory=dict)
    held: list[Held] = msgspec.field(default_factory=list)


LONGEST = 300
"""Characters of an error's text that are kept."""


def text_of(error: BaseException) -> str:
    """Return the text of an error: on one line, without secrets, and not too long."""
    said = str(error) if isinstance(error, CloudError) else f"{type(error).__name__}: {error}"
    said = " ".join(redact.words(said).split())
    if not said.isprintable():
        said = "".join(each if each.isprintable() else "?" for each in said)
    return said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."


def foreign(node: Node, ownership: NodeOwnership) -> str:
    """Why a node is another's; empty: it is not."""
    if prefix := next(filter(node.provider_id.startswith, ownership.others), ""):
        return (
            f"its provider ID {node.provider_id} is another manager's (this provider leaves IDs "
            f"alone that begin with {prefix})"
        )
    if ownership.has_foreign_id(node):
        ours = ", ".join(f"{scheme}://" for scheme in ownership.schemes)
        return f"its provider ID {node.provider_id} is of another cloud (this daemon's: {ours})"
    if ownership.is_foreign(node):
        return "its labels are not those that --own-nodes asks for"
    return ""
