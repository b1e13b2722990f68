from __future__ import annotations

import pytest

from ccm.model.selectors import BadSelectorError, parse_labels
from ccm.sandbox.apiserver import kinds, selectors


@pytest.mark.parametrize(
    ("text", "labels", "selected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        ("a = b , c=d", {"a": "b", "c": "d"}, True),
        ("a=b,c=d", {"a": "b"}, False),
        ("a!=b", {"a": "c"}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("! a", {"a": "x"}, False),
        ("a in (x, y)", {"a": "y"}, True),
        ("a in (x,y)", {}, False),
        ("a notin (x,y)", {}, True),
        ("a notin (x,y)", {"a": "x"}, False),
        ("a in (x,y),!b", {"a": "x", "b": ""}, False),
        ("example.com/a=b", {"example.com/a": "b"}, True),
    ],
)
def test_label_selectors(text: str, labels: dict[str, str], selected: bool) -> None:
    selector = selectors.parse(kinds.NODES, text, "")

    assert selector.matches(labels, {}) is selected


@pytest.mark.parametrize("text", ["a b", "a in x", "=b", "a,,b", "a in (x"])
def test_a_malformed_label_selector_is_refused(text: str) -> None:
    with pytest.raises(BadSelectorError):
        parse_labels(text)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("metadata.name=n1", True),
        ("metadata.name!=n1", False),
        ("spec.unschedulable=false", True),
        ("spec.unschedulable=true,metadata.name=n1", False),
    ],
)
def test_field_selectors(text: str, selected: bool) -> None:
    fields = selectors.fields_of(kinds.NODES, {"metadata": {"name": "n1"}, "spec": {}})

    assert selectors.parse(kinds.NODES, "", text).matches({}, fields) is selected


def test_escaped_characters_of_a_field_selector_are_plain() -> None:
    (term,) = selectors.parse(kinds.EVENTS, "", r"reason=a\,b\=c\\d").fields

    assert term.values == frozenset({r"a,b=c\d"})


def test_the_source_of_an_event_falls_back_to_its_reporter() -> None:
    event = {"metadata": {"name": "e"}, "source": {}, "reportingComponent": "me"}

    assert selectors.fields_of(kinds.EVENTS, event)["source"] == "me"


@pytest.mark.parametrize(
    "text", ["spec.foo=1", "metadata.namespace=x", "metadata.name", "involvedObject.name=x"]
)
def test_a_field_that_nodes_are_not_selected_by_is_refused(text: str) -> None:
    with pytest.raises(BadSelectorError):
        selectors.parse(kinds.NODES, "", text)
