"""Guides, tables and commands of the provider."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from ccm import cloud
from ccm.machines import creation, flags
from ccm.testing.builders import node
from providers import stackit
from providers.stackit import config, machines, reference, refusals, service_annotations
from providers.stackit.testing import __main__ as program
from providers.stackit.testing import server
from tests.sandbox.command import carried_out, fake, guided, plain


@pytest.mark.parametrize("name", reference.FILES)
def test_the_tables_are_as_the_declarations(name: str) -> None:
    held = (reference.FOLDER / name).read_text()

    assert held == reference.FILES[name](), "run `python -m providers.stackit.reference`"


def test_the_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)

    reference.write()

    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {
        name: text() for name, text in reference.FILES.items()
    }


def test_the_guide_knows_every_field_of_a_machine() -> None:
    guide = (reference.FOLDER / "README.md").read_text()
    fields = set(machines.Spec.__struct_encode_fields__)

    assert fields <= set(re.findall(r"`(\w+)`", guide))


def test_the_guides_examples_hold() -> None:
    """As they stand there: nobody copies what is refused."""
    guide = (reference.FOLDER / "README.md").read_text()
    blocks = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)]
    found = {one["kind"]: one for one in blocks if "kind" in one}
    text = found["Secret"]["stringData"]["cloud.yaml"].encode()
    asked = found["Service"]["metadata"]["annotations"]
    schema = {one.name: one for one in service_annotations.SCHEMA}
    secret = {"project-id": server.PROJECT.encode(), "serviceaccount.json": b"{}"}
    (values,) = [one for one in blocks if "extraEnv" in one]

    given = cloud.Context(config=text, environ={"STACKIT_SERVICE_ACCOUNT_TOKEN": "somebody's"})
    assert config.read(given).file.global_.region == "eu01"
    assert [name for name, text in asked.items() if schema[name].fault(text)] == []
    assert machines.problems(found["MachineClass"]["providerSpec"], secret) == []
    assert values["cloud"] == {"provider": "stackit"}
    assert [one["name"] for one in values["extraEnv"]] == ["STACKIT_SERVICE_ACCOUNT_KEY_PATH"]


def test_the_guides_paths_are_where_the_secret_is() -> None:
    """Manifests and chart mount it, and the chart refuses a flag of its own for the file."""
    guide = (reference.FOLDER / "README.md").read_text()
    manifests = reference.FOLDER.parents[1] / "manifests"
    deployment = yaml.safe_load((manifests / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (mounted,) = [
        one["mountPath"] for one in container["volumeMounts"] if one["name"] == "cloud-config"
    ]
    blocks = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)]
    (secret,) = [one for one in blocks if one.get("kind") == "Secret"]
    files = {f"{mounted}/{name}" for name in secret["stringData"]}

    assert set(re.findall(r"/etc/[\w./-]+\w\.\w+", guide)) == files
    assert f"--cloud-config={mounted}/cloud.yaml" in container["args"]
    assert f"mountPath: {mounted}\n" in (manifests / "chart/templates/deployment.yaml").read_text()
    assert "extraArgs.cloud-config" not in guide


def test_levels_are_done_or_say_why_not() -> None:
    levels = tomllib.loads((reference.FOLDER / "quality.toml").read_text())

    assert list(levels) == ["bronze", "silver", "gold", "platinum"]
    rules = [text for level in levels.values() for text in level.values()]
    assert all(re.fullmatch(r"done|todo|exempt: .+", text) for text in rules)
    assert [text for name in ("bronze", "silver", "gold") for text in levels[name].values()].count(
        "todo"
    ) == 0


def test_the_table_of_errors_tells_when_machines_are_tried_again() -> None:
    """The driver cannot ask the machine controller, so its words are compared here."""
    for kind in {one.kind for one in refusals.TABLE}:
        said = refusals.machine_retry(kind)
        if kind is cloud.RetryAfter:
            assert said == "after that time"
        elif kind is cloud.ResourceExhausted:
            name = said.strip("`-").replace("-", "_")
            assert name in {one.name for one in dataclasses.fields(flags.SharedFlags)}
        else:
            seconds = creation.SHORT_S if creation.passes(kind("x")) else creation.MEDIUM_S
            assert said == {5.0: "5 s", 180.0: "3 min"}[seconds]


async def test_the_fake_as_a_program_is_a_cloud() -> None:
    service = server.Service()
    service.settings.no_auth = True
    program.populate(service, ["node-1", "node-2"])
    async with server.serve(service) as url:
        given = cloud.Context(config=program.config(url).encode(), environ=program.variables(url))
        async with stackit.open_cloud(given) as project:
            assert project.instances is not None
            found = await project.instances.instance_metadata(node("node-2"))

    assert found is not None
    assert [one.type for one in found.addresses] == ["InternalIP", "Hostname"]
    assert project.has_cluster_id
    assert "token" in program.variables("http://x", "key.json")["STACKIT_TOKEN_BASEURL"]


GUIDE = reference.FOLDER / "README.md"


def test_the_first_command(tmp_path: Path) -> None:
    """Nothing of somebody's real account reaches the daemon."""
    real = {"STACKIT_SERVICE_ACCOUNT_KEY_PATH": "/nowhere", "STACKIT_NO_AUTH": "perhaps"}

    said = carried_out(tmp_path, guided(GUIDE)[0], {**plain(tmp_path), **real})

    assert said.startswith("done: 3 machines run, 5 nodes initialised, 2 Services served")


@pytest.mark.soak
def test_the_other_commands(tmp_path: Path) -> None:
    """In the end nothing that machines cost is left."""
    _, (_, *program), (_, variable), sandbox = guided(GUIDE)
    name, _, text = variable.partition("=")

    with fake(tmp_path, *program):
        said = carried_out(tmp_path, sandbox, {**plain(tmp_path), name: text})

    assert said.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")
    assert ", 0 warnings in " in said
