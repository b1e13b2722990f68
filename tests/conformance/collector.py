"""A pytest plugin: prints which test proves which row, as one line of JSON."""

from __future__ import annotations

import json

import pytest

MARK = "rows-and-tests: "


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Print every (row, test) of what was collected."""
    pairs = [
        (row, item.nodeid)
        for item in session.items
        for mark in item.iter_markers("row")
        for row in mark.args
    ]
    print(MARK + json.dumps(pairs))
