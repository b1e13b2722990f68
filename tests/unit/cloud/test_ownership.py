"""Which nodes are ours."""

from __future__ import annotations

import pytest

from ccm.cloud.interface import Cloud
from ccm.cloud.ownership import Ownership
from ccm.model import Node
from ccm.model.selectors import BadSelectorError
from ccm.runtime import account
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


@pytest.mark.parametrize(
    ("provider_id", "said"),
    [
        ("fake://1", ""),
        ("", ""),
        ("fake://bm-1", "is another manager's (this provider leaves IDs alone that begin with "),
        ("other://bm-1", "is of another cloud (this daemon's: fake://)"),
    ],
)
def test_another_manager_of_our_scheme_is_foreign(provider_id: str, said: str) -> None:
    ownership = Ownership.at(Cloud(name="fake", foreign_ids=("fake://bm-",)), "")
    found = node(provider_id=provider_id)

    assert ownership.is_foreign(found) is bool(said)
    assert said in account.foreign(found, ownership)
    assert bool(account.foreign(found, ownership)) is bool(said)


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(BadSelectorError):
        Ownership.of(("fake",), "a=b=c")
