from __future__ import annotations

import pytest

from ccm.sandbox.apiserver import kinds, query
from tests.unit.sandbox.apiserver.requests import refused


def options(**parameters: str) -> query.ListOptions:
    return query.list_options(kinds.NODES, parameters)


def test_parameters_are_parsed_and_without_any_everything_is_asked_for() -> None:
    assert options() == query.ListOptions()
    found = options(
        watch="1",
        resourceVersion="0",
        allowWatchBookmarks="true",
        timeoutSeconds="7",
        sendInitialEvents="false",
        resourceVersionMatch="NotOlderThan",
    )

    assert found == query.ListOptions(
        watch=True,
        revision=0,
        bookmarks=True,
        timeout_s=7,
        initial_events=False,
        match=query.NOT_OLDER_THAN,
    )


def test_a_page_of_an_old_list_is_exact() -> None:
    assert options(limit="5", resourceVersion="7").is_exact
    assert not options(limit="5", resourceVersion="0").is_exact
    assert not options(limit="5", resourceVersion="7", resourceVersionMatch="NotOlderThan").is_exact


def test_a_continue_token_survives_the_round_trip() -> None:
    page = query.Continue(rv=7, start="ns/name\0")

    assert options(**{"continue": page.token()}).page == page


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"limit": "x"}, 400),
        ({"continue": "abc"}, 400),
        ({"labelSelector": "a b"}, 400),
        ({"fieldSelector": "spec.foo=1"}, 400),
        ({"resourceVersion": "abc"}, 400),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, 422),
        ({"resourceVersionMatch": "Maybe", "resourceVersion": "1"}, 400),
        ({"sendInitialEvents": "true"}, 422),
        ({"watch": "1", "sendInitialEvents": "true"}, 422),
        ({"watch": "1", "resourceVersionMatch": "NotOlderThan"}, 422),
        ({"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "Exact"}, 422),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters: dict[str, str], code: int) -> None:
    with refused(code, "Invalid" if code == 422 else "BadRequest"):
        options(**parameters)


def test_write_options() -> None:
    found = query.write_options({"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "m"})

    assert (found.dry_run, found.field_validation, found.field_manager) == ("All", "Strict", "m")
    for name, value in (("dryRun", "Some"), ("fieldValidation", "Lax")):
        with refused(400, "BadRequest", name):
            query.write_options({name: value})
