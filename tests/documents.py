"""Validation of HTTP traffic against the vendors' OpenAPI documents.

The documents are not ours to keep. `API_DOCUMENTS` names a folder that has them, in the form of
OpenAPI 3.0; each user of this module says where the public original is. Without one the tests
skip, loudly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ccm.testing.fake_api import Exchange


class Document:
    """One document.

    Args:
        file: its name in the folder.
        host: of the API.
        prefix: in front of the paths of exchanges.
        mended: from the document to one that is read as it is meant; to be given with a reason.
    """

    def __init__(
        self,
        file: str,
        *,
        host: str,
        prefix: str = "",
        mended: Callable[[Any], Any] = lambda found: found,
    ) -> None:
        self._file = file
        self._host = host
        self._prefix = prefix
        self._mended = mended
        self._loaded: Any = None

    def load(self) -> Any:
        """The document; skips the test without it."""
        folder = os.environ.get("API_DOCUMENTS", "")
        path = Path(folder) / self._file
        if not folder or not path.is_file():
            pytest.skip(f"no document {self._file}: set API_DOCUMENTS (tests/documents.py)")
        if self._loaded is None:
            from openapi_core import OpenAPI

            self._loaded = OpenAPI.from_dict(self._mended(json.loads(path.read_text())))
        return self._loaded

    def violations(self, exchanges: Sequence[Exchange]) -> list[str]:
        """Return all deviations of calls and answers from the document."""
        found: list[str] = []
        for one in {_likeness(each): each for each in exchanges}.values():
            found += self._violations(one)
        return found

    def _violations(self, one: Exchange) -> list[str]:
        from openapi_core.testing import MockRequest, MockResponse

        args: dict[str, list[str]] = {}
        for name, value in one.query:
            args.setdefault(name, []).append(value)
        request = MockRequest(
            self._host,
            one.method.lower(),
            f"{self._prefix}{one.path}",
            args=args,
            headers={"Authorization": "Bearer x"},
            data=one.request or None,
            content_type=one.content_type or "application/json",
        )
        document = self.load()
        told: list[str] = []
        if one.status < 400 or one.status == 429:  # a refused request may be a wrong one
            faults = document.iter_apicall_request_errors(request)
            told = [f"{one.operation} request: {_words(each)}" for each in faults]
        if one.status == 204 or (one.status >= 400 and not one.answer):
            return told
        response = MockResponse(one.answer, status_code=one.status)
        answers = document.iter_apicall_response_errors(request, response)
        return told + [f"{one.operation} {one.status} answer: {_words(each)}" for each in answers]


def _likeness(one: Exchange) -> tuple[Any, ...]:
    """Exchanges of the same shape are checked once: a listing has many values."""
    return (one.operation, one.status, tuple(sorted(dict(one.query))), one.request, one.answer)


def _words(error: BaseException) -> str:
    schema = getattr(error.__cause__ or error, "schema_errors", None) or []
    deep = "; ".join(f"{'/'.join(map(str, each.path))}: {each.message[:300]}" for each in schema)
    return deep or f"{error!r} {error.__cause__!r}"
