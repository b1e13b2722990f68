"""Which nodes are ours."""

from __future__ import annotations

import pytest

from ccm.cloud.ownership import Ownership
from ccm.model import Node
from ccm.model.selectors import BadSelectorError
from ccm.testing.builders import node


@pytest.mark.parametrize(
    ("selector", "of", "foreign"),
    [
        ("", node(provider_id="fake://1"), False),
        ("", node(), False),
        ("", node(provider_id="no-scheme"), False),
        ("", node(provider_id="other://1"), True),
        ("own", node(provider_id="fake://1"), True),
        ("own", node(labels={"own": ""}), False),
        ("own", node(provider_id="other://1", labels={"own": ""}), True),
        ("cloud in (a,b),!cellar", node(labels={"cloud": "b"}), False),
        ("cloud in (a,b),!cellar", node(labels={"cloud": "b", "cellar": ""}), True),
    ],
)
def test_who_is_foreign(selector: str, of: Node, foreign: bool) -> None:
    ownership = Ownership.of(("fake",), selector)

    assert ownership.is_foreign(of) is foreign
    assert ownership.is_explicit is bool(selector)


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(BadSelectorError):
        Ownership.of(("fake",), "a=b=c")
