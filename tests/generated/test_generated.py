"""Generated files are up to date."""

from __future__ import annotations

import pytest

from tests.generated import GENERATED, ROOT
from tests.generated.files import files

FILES = {str(path.relative_to(ROOT)): text for path, text in files()}


@pytest.mark.parametrize("name", FILES)
def test_generated_file_matches_the_declarations(name: str) -> None:
    stored = (ROOT / name).read_text(encoding="utf-8")

    assert stored == FILES[name], "run `make generate`"
    assert GENERATED in stored
