"""What the README promises about commands is so."""

from __future__ import annotations

import re
import subprocess
import sys

from ccm.app.options import FLAGS
from tests.readme import readme


def tasks() -> set[str]:
    """The tasks that the project's script offers."""
    script = readme.ROOT / ".dev" / "run.py"
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    return set(re.findall(r"^  (\S+)", told.stdout, re.MULTILINE))


def test_each_task_stands_in_the_table_with_its_python_line() -> None:
    rows = re.findall(r"^\| `make (\S+)` \| `python3 \.dev/run\.py (\S+)` \|", readme.text(), re.M)

    assert {target for target, _ in rows} == tasks()
    assert [target for target, task in rows if target != task] == []


def test_the_makefile_offers_the_same_tasks() -> None:
    makefile = (readme.ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    assert set(listed.split()) - {"help"} == tasks()


def test_every_flag_it_names_exists() -> None:
    named = set(re.findall(r"`--([a-z-]+)`", readme.text().split("## Running it")[1]))
    named -= {"help", "cloud-provider"}

    assert {name for name in named if name not in FLAGS} == set()


def test_the_provider_fits_on_a_screen() -> None:
    lines = [line for line in readme.files()["ccm_rack.py"].splitlines() if line.strip()]

    assert len(lines) <= 60


def test_the_change_log_has_the_version() -> None:
    from ccm import __version__

    assert f"\n## {__version__}" in (readme.ROOT / "CHANGELOG.md").read_text()
