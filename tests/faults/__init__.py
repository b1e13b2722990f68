"""Faults on the wire: an HTTP proxy that cuts, delays, holds and rewrites.

`FaultProxy` stands between a client and an API server, or between a provider
and its cloud. It records every request, and rules say what happens to which.
What enters: faults of the wire, and hooks at the moments of a request. What
must not: knowledge of the daemon or of any server behind the proxy.
"""

from tests.faults.actions import (
    Action,
    Answer,
    Call,
    CloseAfterLines,
    Cut,
    Delay,
    Fell,
    Hold,
    InsertLine,
    Point,
    Reset,
    ResetAfterLines,
    Respond,
    RewriteBody,
    RewriteLine,
    SilentAfterLines,
)
from tests.faults.exchange import Exchange, Match
from tests.faults.proxy import FaultProxy, Rule

__all__ = [
    "Action",
    "Answer",
    "Call",
    "CloseAfterLines",
    "Cut",
    "Delay",
    "Exchange",
    "FaultProxy",
    "Fell",
    "Hold",
    "InsertLine",
    "Match",
    "Point",
    "Reset",
    "ResetAfterLines",
    "Respond",
    "RewriteBody",
    "RewriteLine",
    "Rule",
    "SilentAfterLines",
]
