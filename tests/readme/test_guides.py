"""Each guide is walked from top to bottom: its commands run, and print what the page shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ccm.base import tasks
from ccm.sandbox import cluster
from tests import forkserver, servers
from tests.readme import readme, stage, walk
from tests.readme.clouds import GuideCloud
from tests.scenario import harness
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LANGUAGES = {"ini", "promql", "sh", "text", "yaml"}
"""Languages of fences; commands in another one would not run."""

ONLY_REAL = {("manifests/guides/moving.md", "openstack")}
"""Walks that need kinds of the real API server: DaemonSets."""

WALKS = [
    (page, name)
    for page, names in readme.GUIDES.items()
    for name in names
    if not readme.INSTALLED.get((page, name))
]
"""The others are part of the walk of a quick start."""


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in API server starts at once."""
    monkeypatch.setattr(cluster, "open_child", forkserver.open_child)


async def follow(page: str, name: str, folder: Path, assets: Path | None = None) -> None:
    """Walk through a guide, with the real API server if `assets` has it."""
    provider = readme.CLOUD_OF.get(name, name)
    async with (
        cluster.open_api_server(folder / "server", assets=assets) as server,
        stage.open_stage(server, folder / "pods", provider) as place,
    ):
        reader = walk.Walk(folder, place.cloud, {"KUBECONFIG": str(place.kubeconfig)})

        async def read() -> None:
            await harness.wait_for(place.is_populated, "nodes")
            for steps in readme.steps_of_walk(page, name):
                await reader.follow(steps)
                # A guide that begins in a cluster of its own keeps the load balancer of it.
                assert page in readme.WORLDS or not place.cloud.balancers(), "the guide cleans up"

        try:
            await tasks.first_of(read(), place.run(), name="guide")
        except AssertionError:
            print(place.workloads.logs())
            raise

        assert bool(place.cloud.balancers()) == (page in readme.WORLDS)


@pytest.mark.parametrize(("page", "name"), [one for one in WALKS if one not in ONLY_REAL])
async def test_a_guide_can_be_followed_to_its_end(page: str, name: str, tmp_path: Path) -> None:
    await follow(page, name, tmp_path)


@pytest.mark.envtest
@pytest.mark.soak
@pytest.mark.parametrize(("page", "name"), WALKS)
async def test_a_guide_can_be_followed_on_a_real_api_server(
    page: str, name: str, tmp_path: Path
) -> None:
    await follow(page, name, tmp_path, servers.require_assets())


@pytest.mark.parametrize("page", [page for page, names in readme.GUIDES.items() if not names])
async def test_a_guide_without_a_cluster_can_be_followed_to_its_end(
    page: str, tmp_path: Path
) -> None:
    (steps,) = readme.steps_of_walk(page, "")
    await walk.Walk(tmp_path, GuideCloud(), {}).follow(steps)


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

    assert guides <= {*readme.GUIDES, *readme.PAGES, readme.SYMPTOMS}
    walked = [steps for page, name in WALKS for steps in readme.steps_of_walk(page, name)]
    for (page, name), shared in readme.INSTALLED.items():
        steps = [step for step in readme.steps(readme.text(page)) if step.on in ("", name)]
        assert steps in walked, f"{page} for {name}, in the cluster of {shared or 'its own'}"


@pytest.mark.parametrize("page", readme.GUIDES)
def test_a_guide_names_its_files_in_its_text(page: str) -> None:
    text = readme.text(page)

    files = {step.file for step in readme.steps(text) if step.file}

    assert {file for file in files if f"`{file}`" not in text} == set()  # no page shows titles


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```sh\necho one\nfalse\necho two\n```\n", "failed:\none\n"),
        ("```sh\necho one\n```\n\n```text\ntwo\n```\n", "does not print 'two'"),
        ("```sh\n# in a terminal of its own\necho one\n```\n\n```text\ntwo\n```\n", "'two'"),
    ],
)
async def test_a_step_that_fails_or_prints_other_lines_ends_the_walk(
    page: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=fault):
        await walk.Walk(tmp_path, GuideCloud(), {}).follow(readme.steps(page))


async def test_a_walk_keeps_variables_and_fills_in_values(tmp_path: Path) -> None:
    page = (
        "```sh\n# in a terminal of its own\necho '  export NAME=value'; sleep 100\n```\n\n"
        "```text\nexport …\n```\n\n"
        '```yaml title="file.yaml"\ntoken: <token>\n```\n\n'
        "```sh\ncat file.yaml - && echo $NAME\n```\n\n```text\ntoken: filled\nvalue\n```\n"
    )
    await walk.Walk(tmp_path, GuideCloud(fill={"<token>": "filled"}), {}).follow(readme.steps(page))


def test_a_forked_program_prints_and_ends_as_its_module(tmp_path: Path) -> None:
    program = tmp_path / "kube-ccm"
    forkserver.write_program(program, "ccm.cli")
    environment = {"HOME": str(tmp_path), "PATH": os.defpath}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    (tmp_path / "cloud.yaml").write_text("url: [")
    described = run("providers", "sim", "--cloud-config=cloud.yaml")
    assert (described.returncode, "cloud.yaml is not valid YAML" in described.stderr) == (1, True)
    refused = run("explain", "nod", "a")
    assert (refused.returncode, "did you mean node?" in refused.stderr) == (2, True)


def test_a_forked_program_takes_its_module_along_when_it_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "apiserver"
    forkserver.write_program(program, "ccm.testing.apiserver")
    words = [str(program), "--data-dir", str(tmp_path / "state")]

    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"kubeconfig" in process.stdout.readline()
        process.kill()
        # To the end of the last process that may write there.
        process.stdout.read()


def test_a_fence_that_would_be_overlooked_is_an_error() -> None:
    with pytest.raises(ValueError, match="a fence starts its line"):
        readme.languages("1. ```sh\n   echo one\n   ```\n")
