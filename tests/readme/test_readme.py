"""What the README promises about commands is so."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from ccm import __version__
from ccm.app.options import FLAGS
from ccm.cloud import interface
from ccm.cloud.machines import MachineDriver
from ccm.testing.contract import Harness
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


def test_the_machine_driver_fits_on_two() -> None:
    lines = [line for line in readme.files()["ccm_tiny.py"].splitlines() if line.strip()]

    assert len(lines) < 100


def test_every_provider_that_comes_along_is_listed() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", readme.providers(), re.MULTILINE)
    project = tomllib.loads(readme.text("pyproject.toml"))["project"]

    assert rows == [*project["entry-points"]["ccm.providers"]]


def test_every_file_that_the_author_is_sent_to_is_there() -> None:
    page = readme.ROOT / "providers" / "README.md"
    links = re.findall(r"\]\(([^)#]+)\)", readme.providers())

    assert len(links) >= 5
    assert [link for link in links if not (page.parent / link).is_file()] == []


def test_the_author_is_told_of_the_image_of_this_version() -> None:
    assert f"DAEMON=kube-ccm:{__version__} ." in readme.providers()


def test_every_method_that_the_author_is_told_of_exists() -> None:
    parts = {part.partition("\n")[0]: part for part in readme.providers().split("\n## ")}
    told = {
        name: set(re.findall(r"^\| `(\w+)` \|", parts[name], re.M))
        for name in ("Load balancers", "Machines")
    }
    hooks = re.split("## The harness|## The smallest", readme.providers())[1]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", hooks, re.M))))
    ours = {name for name in vars(Harness) if not name.startswith("_")}

    assert told == {
        "Load balancers": {
            name for name in vars(interface.LoadBalancer) if "load_balancer" in name
        },
        "Machines": {name for name, kind in vars(MachineDriver).items() if callable(kind)}
        - {name for name in vars(MachineDriver) if name.startswith("_")},
    }
    assert len(named) >= 15
    assert named <= ours


def test_the_change_log_has_the_version() -> None:
    assert f"\n## {__version__}" in (readme.ROOT / "CHANGELOG.md").read_text()
