"""The contract broken: each defect of a provider is noticed by the cases made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import broken
from tests.contract.verdicts import verdicts_of

pytestmark = pytest.mark.xdist_group("defects")  # their one run is not worth repeating

FILE = Path(broken.__file__)
PLACES = {
    (f"Test{name}", case): f"{FILE}::Test{name}::{case}"
    for name, defect in broken.defects.DEFECTS.items()
    for case in defect.noticed
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """(class, case) -> `failed` or `passed`; one run of pytest for all of them."""
    return verdicts_of(PLACES.values(), tmp_path_factory.mktemp("suite"))


@pytest.mark.parametrize(("defect", "case"), PLACES)
def test_defect_is_noticed(verdicts: dict[tuple[str, str], str], defect: str, case: str) -> None:
    """The case fails, and fails as a case: an error of a fixture does not count."""
    assert verdicts[defect, case] == "failed"
