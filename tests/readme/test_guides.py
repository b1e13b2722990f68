"""Each guide is walked from top to bottom: its commands run, and print what the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ccm.base import tasks
from tests import servers
from tests.readme import readme, stage, walk
from tests.scenario import harness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LANGUAGES = {"sh", "text", "yaml"}
"""Languages of fences; commands in another one would not run."""

WALKS = [(page, on) for page, clouds in readme.GUIDES.items() for on in clouds]


def chosen(page: str, on: str = "") -> Sequence[readme.Step]:
    """Return the steps of a page for a cloud."""
    return [step for step in readme.steps(readme.text(page)) if step.on in ("", on)]


@pytest.mark.parametrize(("page", "on"), WALKS)
async def test_a_guide_can_be_followed_to_its_end(
    page: str, on: str, api_server: servers.ApiServer, tmp_path: Path
) -> None:
    async with stage.open_stage(api_server, tmp_path / "pods", on) as place:
        environment = {**place.cloud.environment, "KUBECONFIG": str(place.kubeconfig)}
        reader = walk.Walk(tmp_path, place.cloud.fill, environment)

        async def follow() -> None:
            await harness.wait_for(place.is_populated, "nodes")
            await reader.follow(chosen(page, on))

        try:
            await tasks.first_of(follow(), place.run(), name="guide")
        except AssertionError:
            print(place.deployments.logs())
            raise

        assert place.cloud.balancers() == [], "the guide cleans up"


@pytest.mark.parametrize("page", [page for page, clouds in readme.GUIDES.items() if not clouds])
async def test_a_guide_without_a_cluster_can_be_followed_to_its_end(
    page: str, tmp_path: Path
) -> None:
    await walk.Walk(tmp_path, {}, {}).follow(chosen(page))


@pytest.mark.parametrize("page", readme.GUIDES)
def test_commands_of_a_guide_run_or_say_what_they_need(page: str) -> None:
    text = readme.text(page)
    needs = {step.needs for step in readme.steps(text) if step.needs}
    marked = {step.on for step in readme.steps(text) if step.on}

    assert readme.languages(text) <= LANGUAGES
    assert {need for need in needs if not need.startswith(readme.MARKS)} == set()
    assert marked <= {*readme.GUIDES[page]}


def test_every_guide_is_walked() -> None:
    guides = {
        str(path.relative_to(readme.ROOT)) for path in (readme.ROOT / "manifests/guides").iterdir()
    }

    assert guides == {*readme.GUIDES, *readme.PAGES} & guides


@pytest.mark.parametrize("page", readme.GUIDES)
def test_a_guide_names_its_files_in_its_text(page: str) -> None:
    text = readme.text(page)

    files = {step.file for step in readme.steps(text) if step.file}

    assert {file for file in files if f"`{file}`" not in text} == set()  # no page shows titles
