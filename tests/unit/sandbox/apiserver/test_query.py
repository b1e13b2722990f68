from __future__ import annotations

import pytest

from ccm.sandbox.apiserver import errors, kinds, query


def options(**parameters: str) -> query.ListOptions:
    return query.list_options(kinds.NODES, parameters)


def test_a_list_without_parameters_asks_for_everything() -> None:
    found = options()

    assert found.selector.is_empty
    assert (found.revision, found.limit, found.page, found.timeout_s) == (None, 0, None, None)


def test_parameters_are_parsed() -> None:
    found = options(
        watch="1",
        resourceVersion="0",
        allowWatchBookmarks="true",
        timeoutSeconds="7",
        sendInitialEvents="false",
        resourceVersionMatch="NotOlderThan",
    )

    assert (found.watch, found.bookmarks, found.initial_events) == (True, True, False)
    assert (found.revision, found.timeout_s) == (0, 7)


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
    with pytest.raises(errors.ApiError) as caught:
        query.list_options(kinds.NODES, parameters)

    assert caught.value.code == code


def test_write_options() -> None:
    found = query.write_options({"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "m"})

    assert (found.dry_run, found.field_validation, found.field_manager) == ("All", "Strict", "m")
    with pytest.raises(errors.ApiError, match="dryRun"):
        query.write_options({"dryRun": "Some"})
    with pytest.raises(errors.ApiError, match="fieldValidation"):
        query.write_options({"fieldValidation": "Lax"})
