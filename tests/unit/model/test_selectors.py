"""Selectors as objects have them; their text form is tried where the sandbox reads it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ccm.model.selectors import BadSelectorError, LabelSelector, Term, matches


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({"a": "1", "b": "2"}, True, id="all terms hold"),
        pytest.param({"a": "1"}, False, id="one is missing"),
        pytest.param({"a": "9", "b": "2"}, False, id="a value differs"),
        pytest.param({"a": "1", "b": "2", "c": ""}, False, id="one that must not exist does"),
        pytest.param({"a": "1", "b": "2", "d": "4"}, False, id="a value that must not be is"),
        pytest.param({"a": "1", "b": "2", "d": "5"}, True, id="another value may be"),
    ],
)
def test_a_selector_holds_where_all_its_terms_do(labels: Mapping[str, str], expected: bool) -> None:
    selector = LabelSelector(
        match_labels={"a": "1"},
        match_expressions=[
            Term(key="b", operator="In", values=["2", "3"]),
            Term(key="b", operator="Exists"),
            Term(key="c", operator="DoesNotExist"),
            Term(key="d", operator="NotIn", values=["4"]),
        ],
    )

    assert matches(selector.requirements(), labels) is expected


@pytest.mark.parametrize(
    ("operator", "values", "said"),
    [
        ("Near", [], "'Near' of 'a' is none of In, NotIn, Exists, DoesNotExist"),
        ("In", [], "In of 'a' needs values"),
        ("NotIn", [], "NotIn of 'a' needs values"),
        ("Exists", ["1"], "Exists of 'a' takes no values"),
        ("DoesNotExist", ["1"], "DoesNotExist of 'a' takes no values"),
    ],
)
def test_a_term_that_makes_no_sense_is_refused(operator: str, values: list[str], said: str) -> None:
    term = Term(key="a", operator=operator, values=values)
    with pytest.raises(BadSelectorError, match=said):
        LabelSelector(match_expressions=[term]).requirements()
