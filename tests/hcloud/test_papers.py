"""Guides, tables and commands of the provider."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from providers.hcloud import machines, reference
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.hcloud.pool import FLAGS, KINDS
from tests.sandbox.command import carried_out, fake, guided, plain
from tests.scenario import harness
from tests.scenario.harness import wait_for
from tests.scenario.machines import SERVICES


def test_the_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)

    reference.write()

    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(reference.FILES)


def test_the_guide_knows_every_field_of_a_machine() -> None:
    guide = (reference.FOLDER / "README.md").read_text()
    fields = {one for one in machines.Spec.__struct_encode_fields__ if one != "datacenter"}

    assert fields <= set(re.findall(r"`(\w+)`", guide))


def _flags(guide: str) -> dict[str, str]:
    """The flags that the guide gives to the chart."""
    return dict(re.findall(r"--set extraArgs\.([a-z-]+)=(\S+)", guide))


def test_levels_are_done_or_say_why_not() -> None:
    levels = tomllib.loads((reference.FOLDER / "quality.toml").read_text())

    assert list(levels) == ["bronze", "silver", "gold", "platinum"]
    rules = [text for level in levels.values() for text in level.values()]
    assert all(re.fullmatch(r"done|todo|exempt: .+", text) for text in rules)
    assert [text for name in ("bronze", "silver", "gold") for text in levels[name].values()].count(
        "todo"
    ) == 0


async def test_more_names_than_a_network_takes_are_refused_in_words() -> None:
    names = [f"node-{number}" for number in range(101)]

    with pytest.raises(SystemExit, match=r"^at most 100 names: .*: too many servers"):
        await program.run(program.build_parser().parse_args(names))


GUIDE = reference.FOLDER / "README.md"


def test_the_first_command(tmp_path: Path) -> None:
    """Nothing of somebody's real account reaches the daemon."""
    real = {"HCLOUD_TOKEN": "real" * 16, "HCLOUD_ENDPOINT": "http://127.0.0.1:9/v1"}

    said = carried_out(tmp_path, guided(GUIDE)[0], {**plain(tmp_path), **real})

    assert said.startswith("done: 3 machines run, 5 nodes initialised, 2 Services served")


@pytest.mark.soak
def test_with_routes(tmp_path: Path) -> None:
    """What the guide says about `--routes`."""
    said = carried_out(tmp_path, [*guided(GUIDE)[0], "--routes"], plain(tmp_path))

    assert "5 routes" in said
    assert ", 0 warnings in " in said


@pytest.mark.soak
def test_the_other_commands(tmp_path: Path) -> None:
    """In the end nothing that machines cost is left."""
    _, (_, *program), sandbox = guided(GUIDE)

    with fake(tmp_path, *program):
        said = carried_out(tmp_path, sandbox, plain(tmp_path))

    assert said.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")
    assert ", 0 warnings in " in said


SPEC = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}


@pytest.mark.row("hcloud-config-03", "hcloud-balancer-08")
async def test_a_token_in_a_file_is_exchanged_without_a_restart(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """And what the cloud chooses in somebody's place is an event about the Service."""
    fake, token = server.Service(), tmp_path / "token"
    program.populate(fake, [])
    token.write_text(fake.token)
    flags = {**FLAGS, "cloud-config": "", "controllers": ",".join(KINDS)}
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        environ = {
            "HCLOUD_ENDPOINT": endpoint,
            "HCLOUD_TOKEN_FILE": str(token),
            "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
        }
        daemon = await env.start_leading(flags=flags, env=environ)
        await env.cluster.create(SERVICES, {"metadata": {"name": "web"}, "spec": SPEC})
        await wait_for(balancers(fake, 1), "there is a load balancer")

        fake.token = "renewed" * 9
        token.write_text(fake.token)
        await daemon.says("changed file is in use", file=str(token))
        await env.cluster.delete(f"{SERVICES}/web")
        await wait_for(balancers(fake, 0), "there is none")
        (event,) = await env.cluster.events("web", "LoadBalancerTypeUnconfigured")
        assert await daemon.stop() == 0

    assert (event["type"], event["source"]["component"]) == (
        "Warning",
        "hcloud-cloud-controller-manager",
    )


def balancers(fake: server.Service, number: int) -> Callable[[], Awaitable[bool]]:
    """Whether there are so many."""

    async def held() -> bool:
        return len(fake.cloud.load_balancers) == number

    return held
