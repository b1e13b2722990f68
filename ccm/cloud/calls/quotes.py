"""Errors without the user data that a cloud quotes. Pure.

User data holds a bootstrap token and whatever else a VM is booted with. An error's text goes to the
Machine's status, to Events, to the log and to `explain`, where more people can read it.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ccm.base import redact
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import SPEC_USER_DATA, MachineRequest
from ccm.cloud.operation import Operation

PIECE = 16
"""Characters in a row that count as a quotation."""

_GRAM = 8
"""Every quotation has a gram that begins at a multiple of this in its source."""

_PLACES = 8
"""Places of a source that are compared for one gram; a hostile one would repeat it everywhere."""


def mask(error: CloudError, operation: Operation) -> bool:
    """Mask quotations of user data in an error; return whether it or a cause had any."""
    requests = [one for one in operation.arguments.values() if isinstance(one, MachineRequest)]
    sources = [source for request in requests for source in _sources(request)]
    if not sources:
        return False
    said = str(error)
    masked = _masked(said, sources)
    if masked != said:
        error.args = (masked,)
        return True
    return any(_masked(text := str(cause), sources) != text for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    found = error.__cause__ or error.__context__
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _masked(text: str, sources: Sequence[str]) -> str:
    text = text[: redact.LONGEST]
    for source in sources:
        text = _without(text, source)
    return text


def _sources(request: MachineRequest) -> Iterator[str]:
    """Yield the user data as they are, within JSON, and in base64."""
    in_spec = request.provider_spec.get(SPEC_USER_DATA)
    for data in (request.user_data, in_spec.encode() if isinstance(in_spec, str) else b""):
        if not data:
            continue
        text = data.decode(errors="replace")
        digits = base64.b64encode(data).decode()
        who = request.identity
        for name in (who.name, who.pool, who.namespace, who.cluster, who.uid):
            # Names of the machine are no secret, and errors have them.
            text = text.replace(name, "\0") if len(name) >= _GRAM else text
        # As they are first: the others would leave the short lines between long ones.
        yield from (text, json.dumps(text, ensure_ascii=False)[1:-1])
        yield from {digits, digits.replace("+", "-").replace("/", "_")}


def _without(text: str, source: str) -> str:
    """Mask all runs of at least `PIECE` characters that are in the source too."""
    grams: defaultdict[str, list[int]] = defaultdict(list)
    for place in range(0, len(source) - _GRAM + 1, _GRAM):
        places = grams[source[place : place + _GRAM]]
        if len(places) < _PLACES:
            places.append(place)
    parts, done, at = [], 0, 0
    while at <= len(text) - _GRAM:
        runs = [
            _run(text, source, at, place, done) for place in grams.get(text[at : at + _GRAM], ())
        ]
        start, end = max(runs, key=lambda run: run[1] - run[0], default=(at, at))
        if end - start >= PIECE:
            parts += [text[done:start], redact.MASK]
            done = at = end
        else:
            at += 1
    return "".join((*parts, text[done:]))


def _run(text: str, source: str, at: int, place: int, least: int) -> tuple[int, int]:
    """Return the ends of the common run around a gram; it begins at `least` or later."""
    start, end = at, at + _GRAM
    shift = place - at
    while start > least and start + shift > 0 and text[start - 1] == source[start - 1 + shift]:
        start -= 1
    while end < len(text) and end + shift < len(source) and text[end] == source[end + shift]:
        end += 1
    return start, end
