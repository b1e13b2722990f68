"""The documentation is true about flags, tasks, files, layers and versions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ccm import cli
from ccm.app.options import FLAGS
from ccm.cli import completion
from ccm.cloud import interface
from ccm.cloud.machines import MachineDriver
from ccm.testing.contract import Harness
from tests.envtest import assets
from tests.readme import readme

OPERATORS = (*readme.PAGES, *readme.GUIDES, readme.SYMPTOMS)
PAGES = (*OPERATORS, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
KUBERNETES = {
    *("allocate-node-cidrs", "admission-control-config-file"),
    *("reuse-values", "take-ownership"),
}
"""Flags of Kubernetes and Helm that the pages for operators mention."""


def tasks() -> set[str]:
    """The tasks that the project's script offers."""
    script = readme.ROOT / ".dev" / "run.py"
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    return set(re.findall(r"^  (\S+)", told.stdout, re.MULTILINE))


def test_the_task_table_lists_each_task_with_its_python_command() -> None:
    page = readme.text("CONTRIBUTING.md")
    rows = re.findall(r"^\| `make (\S+)` \| `python3 \.dev/run\.py (\S+)` \|", page, re.M)

    assert {target for target, _ in rows} == tasks()
    assert [target for target, task in rows if target != task] == []


def test_the_makefile_has_the_same_tasks() -> None:
    makefile = (readme.ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    assert set(listed.split()) - {"help"} == tasks()


@pytest.mark.parametrize("page", [*OPERATORS, "CONTRIBUTING.md"])
def test_every_flag_named_on_a_page_exists(page: str) -> None:
    named = set(re.findall(r"`--([a-z-]+)[=`]", readme.text(page)))

    assert named - KUBERNETES <= {"help", *FLAGS, *flags_of_commands()}


def flags_of_commands() -> set[str]:
    """The flags of `kube-ccm` and its commands, as Tab completes them."""
    parser = cli.build_parser()
    places = [completion.completion_context(parser, ["kube-ccm"])]
    places += [
        completion.completion_context(parser, ["kube-ccm", command]) for command in places[0].words
    ]
    return {name.lstrip("-") for place in places for one in place.options for name in one.names}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_has_a_target(page: str) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)]+)\)", readme.text(page)):
        name, _, part = link.partition("#")
        target = (readme.ROOT / page).parent / name if name else readme.ROOT / page
        if not target.is_file() or (part and part not in anchors(target)):
            lost.append(link)

    assert lost == []


def anchors(page: Path) -> set[str]:
    """Return the link anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_documented_layers_match_the_import_contract() -> None:
    page = readme.text("ccm/README.md").partition("## The layers")[2].partition("\n\nBeside")[0]
    told = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)]
    settings = tomllib.loads(readme.text("pyproject.toml"))["tool"]["importlinter"]
    layers = [re.findall(r"\w+", line) for line in settings["contracts"][0]["layers"]]
    # A contract may name a room before it is built.
    built = [[room for room in layer if is_built(room)] for layer in layers]

    assert told == built


def is_built(room: str) -> bool:
    ccm = readme.ROOT / "ccm"
    return (ccm / room).is_dir() or (ccm / f"{room}.py").is_file()


def test_documented_kubernetes_versions_are_tested() -> None:
    page = readme.text().partition("## Kubernetes versions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+\.\d+) \| (v[\d.]+)", page, re.MULTILINE)
    tried = {assets.kubernetes_version(), *assets.OTHER_VERSIONS}

    assert assets.kubernetes_version() in {version for _, version in rows}
    assert {version for _, version in rows} <= tried
    assert all(version.startswith(f"v{minor}.") for minor, version in rows)


def test_every_included_provider_is_listed() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", readme.providers(), re.MULTILINE)
    project = tomllib.loads(readme.text("pyproject.toml"))["project"]

    assert rows == [*project["entry-points"]["ccm.providers"]]


def test_documented_methods_of_the_sdk_exist_and_are_complete() -> None:
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
