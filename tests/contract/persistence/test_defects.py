"""The persistence contract broken: each defect is noticed by the cases made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.testing.persistence_contract import ROWS
from tests.contract.persistence import broken
from tests.contract.verdicts import verdicts_of

pytestmark = pytest.mark.xdist_group("persistence-defects")

FILE = Path(broken.__file__)
PLACES = [
    (f"Test{name}", case) for name, defect in broken.DEFECTS.items() for case in defect.noticed
]


def test_every_contract_case_fails_for_at_least_one_defect() -> None:
    """A case that no defect makes fail proves nothing."""
    assert {case for _, case in PLACES} == set(ROWS.values())


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    places = [f"{FILE}::{name}::{case}" for name, case in PLACES]
    return verdicts_of(places, tmp_path_factory.mktemp("suite"))


@pytest.mark.parametrize(("defect", "case"), PLACES)
def test_defect_is_noticed(verdicts: dict[tuple[str, str], str], defect: str, case: str) -> None:
    assert verdicts[defect, case] == "failed"
