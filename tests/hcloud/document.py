"""The vendor's OpenAPI document as a judge of what goes over the wire.

The document is not ours to keep. `API_DOCUMENTS` names a folder that has it as `hcloud.json`, in
the form of OpenAPI 3.0; the public original is at https://docs.hetzner.cloud (3.1), a mirror in 3.0
is the repository MaximilianKoestler/hcloud-openapi. Without it the tests skip, loudly.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from providers.hcloud.testing.server import Exchange

HOST = "https://api.hetzner.cloud/v1"


@functools.cache
def load() -> Any:
    """The document; skips the test without it."""
    folder = os.environ.get("API_DOCUMENTS", "")
    path = Path(folder) / "hcloud.json"
    if not folder or not path.is_file():
        pytest.skip("no document of the Hetzner Cloud API: set API_DOCUMENTS (tests/hcloud)")
    from openapi_core import OpenAPI

    document = json.loads(path.read_text())
    return OpenAPI.from_dict(_with_nulls(document, document["components"]["schemas"]))


def _with_nulls(node: Any, schemas: dict[str, Any]) -> Any:
    """Null where it is allowed: of OpenAPI 3.1 the mirror made `allOf` with `nullable` beside it.

    Read strictly that allows no null, for what stands in `allOf` does not. Those are the only
    places that are read otherwise than they are written.
    """
    if isinstance(node, list):
        return [_with_nulls(one, schemas) for one in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"allOf": [{"$ref": str(ref)}], "nullable": True}:
            node = {**schemas[ref.rpartition("/")[2]], "nullable": True}
    return {key: _with_nulls(value, schemas) for key, value in node.items()}


def violations(exchanges: list[Exchange]) -> list[str]:
    """Everything in which calls and answers are not as the document says."""
    found: list[str] = []
    for one in {_likeness(each): each for each in exchanges}.values():
        found += _violations(one)
    return found


def _likeness(one: Exchange) -> tuple[Any, ...]:
    """Exchanges that look alike are looked at once: the values of a listing are many."""
    return (one.operation, one.status, tuple(sorted(dict(one.query))), one.request, one.answer)


def _violations(one: Exchange) -> list[str]:
    from openapi_core.testing import MockRequest, MockResponse

    args: dict[str, list[str]] = {}
    for name, value in one.query:
        args.setdefault(name, []).append(value)
    request = MockRequest(
        HOST.removesuffix("/v1"),
        one.method.lower(),
        f"/v1{one.path}",
        args=args,
        headers={"Authorization": "Bearer x"},
        data=one.request or None,
    )
    response = MockResponse(one.answer, status_code=one.status)
    document = load()
    faults = [*document.iter_apicall_request_errors(request)]
    if one.status < 400 or one.status == 429:  # a refused request may be a wrong one
        where = "request"
        told = [f"{one.operation} {where}: {_words(each)}" for each in faults]
    else:
        told = []
    if one.status == 204:
        return told
    answers = document.iter_apicall_response_errors(request, response)
    return told + [f"{one.operation} {one.status} answer: {_words(each)}" for each in answers]


def _words(error: BaseException) -> str:
    schema = getattr(error.__cause__ or error, "schema_errors", None) or []
    deep = "; ".join(f"{'/'.join(map(str, each.path))}: {each.message[:300]}" for each in schema)
    return deep or f"{error!r} {error.__cause__!r}"
