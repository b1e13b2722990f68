"""What all fronts share knows the names of none."""

from __future__ import annotations

import re
from pathlib import Path

from ccm import machines
from ccm.gardener import names

FOLDER = Path(machines.__file__).parent
DOMAIN = re.compile(r"[a-z0-9-]+\.[a-z]{2,}/[a-z]")


def test_no_group_label_or_annotation_stands_in_the_neutral_layer() -> None:
    promised = [
        text
        for name, text in vars(names).items()
        if name.isupper() and isinstance(text, str) and ("/" in text or "." in text)
    ]
    strays = [
        f"{path.name}: {found}"
        for path in FOLDER.rglob("*.py")
        for found in [*promised, *DOMAIN.findall(path.read_text()), "gardener", "sapcloud"]
        if found in path.read_text().replace("`ccm.gardener`", "")
    ]

    assert len(promised) > 20
    assert strays == []
