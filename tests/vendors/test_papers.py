"""Guides, tables and commands of the vendors' providers."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import providers
from ccm import cloud
from ccm.machines import creation, flags
from providers.hcloud import config as hcloud_config
from providers.hcloud.testing import __main__ as hcloud_program
from providers.openstack import config as openstack_config
from providers.stackit import refusals
from providers.stackit.testing import server as stackit_server
from tests.manifests import shipped
from tests.sandbox.command import carried_out, fake, guided, plain

REAL: Mapping[str, Mapping[str, str]] = {
    "hcloud": {"HCLOUD_TOKEN": "real" * 16, "HCLOUD_ENDPOINT": "http://127.0.0.1:9/v1"},
    "openstack": {"OS_CLOUD": "real", "OS_AUTH_URL": "http://127.0.0.1:9/v3", "OS_USERNAME": "me"},
    "stackit": {"STACKIT_SERVICE_ACCOUNT_KEY_PATH": "/nowhere", "STACKIT_NO_AUTH": "perhaps"},
}
"""Variables of a real account."""

FOLDERS = {name: Path(providers.__file__).parent / name for name in REAL}
each_name = pytest.mark.parametrize("name", FOLDERS)


def module(vendor: str, name: str) -> Any:
    """A module of a provider."""
    return importlib.import_module(f"providers.{vendor}.{name}")


def blocks(name: str) -> list[dict[str, Any]]:
    """The YAML documents of a guide."""
    guide = (FOLDERS[name] / "README.md").read_text()
    return [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)]


@each_name
def test_the_guide_documents_every_field_of_a_machine_spec(name: str) -> None:
    guide = (FOLDERS[name] / "README.md").read_text()
    fields = {*module(name, "machines").Spec.__struct_encode_fields__}

    assert fields - {"datacenter"} <= set(re.findall(r"`(\w+)`", guide))


@each_name
def test_annotations_and_machine_classes_of_the_guide_are_valid(name: str) -> None:
    found = {one["kind"]: one for one in blocks(name) if "kind" in one}
    schema = {one.name: one for one in module(name, "service_annotations").SCHEMA}
    secrets: Mapping[str, Mapping[str, bytes]] = {
        "hcloud": {"token": b"t"},
        "openstack": {
            "authURL": b"https://keystone.example.com/v3",
            "applicationCredentialID": b"a",
            "applicationCredentialSecret": b"s",
        },
        "stackit": {
            "project-id": stackit_server.PROJECT.encode(),
            "serviceaccount.json": b"{}",
        },
    }
    asked = found["Service"]["metadata"]["annotations"]

    assert [name for name, text in asked.items() if schema[name].fault(text)] == []
    problems = module(name, "machines").problems
    spec, secret = found["MachineClass"]["providerSpec"], cloud.Credentials(secrets[name])
    assert problems(spec, secret) == []


def test_settings_of_the_hcloud_guide_are_valid(tmp_path: Path) -> None:
    """In the Secret, and in both values of the chart."""
    (secret,) = [one for one in blocks("hcloud") if one.get("kind") == "Secret"]
    (values,) = [one for one in blocks("hcloud") if "extraEnv" in one]
    environment = {one["name"]: "x" for one in values["extraEnv"]}
    content = values["cloud"]["config"]["content"].encode()
    text = secret["stringData"]["cloud.yaml"].encode()

    given = cloud.Context(config=text).settings(hcloud_config.Config, environment=True)
    assert (given.network, given.balancers_location, given.has_routes) == ("k8s", "fsn1", True)
    (robot,) = [one for one in blocks("hcloud") if "ROBOT_USER" in one]
    both = yaml.safe_dump({**yaml.safe_load(text), **robot}).encode()
    given = cloud.Context(config=both).settings(hcloud_config.Config, environment=True)
    assert (given.robot_user, given.has_routes) == ("#ws+abcdef12", False)
    taken = cloud.Context(config=content, environ=environment)
    assert taken.settings(hcloud_config.Config, environment=True).balancers_location == "x"
    guide = (FOLDERS["hcloud"] / "README.md").read_text()
    more = dict(re.findall(r"--set extraArgs\.([a-z-]+)=(\S+)", guide))
    for chosen in (values, {"cloud": {"provider": "hcloud"}, "extraArgs": more}):
        made = shipped.rendered(tmp_path, chosen)
        assert "--cloud-provider=hcloud" in made
    assert "--cluster-cidr=10.244.0.0/16" in made


def test_manifests_mount_the_files_where_the_stackit_guide_says() -> None:
    guide = (FOLDERS["stackit"] / "README.md").read_text()
    manifests = FOLDERS["stackit"].parents[1] / "manifests"
    deployment = yaml.safe_load((manifests / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    mounted = mounts["cloud-config"]
    files = {f"{mounted}/{name}" for name in ("cloud.yaml", "key.json")}
    assert set(re.findall(r"/etc/[\w./-]+\w\.\w+", guide)) == files
    assert f"--cloud-config={mounted}/cloud.yaml" in container["args"]
    assert f"mountPath: {mounted}\n" in (manifests / "chart/templates/deployment.yaml").read_text()


def test_settings_of_the_openstack_guide_are_valid(tmp_path: Path) -> None:
    (secret,) = [one for one in blocks("openstack") if one.get("kind") == "Secret"]
    (values,) = [one for one in blocks("openstack") if "cloud" in one]
    text = secret["stringData"]["cloud.conf"].encode()

    given = openstack_config.read_all(cloud.Context(config=text)).file
    assert (given.global_.region, bool(given.route.router_id)) == ("RegionOne", True)
    made = shipped.rendered(tmp_path, values)
    assert "--cloud-provider=openstack" in made
    assert "--cloud-config=/etc/ccm/cloud.conf" in made
    assert secret["metadata"]["name"] in made


@each_name
def test_quality_rules_are_done_or_exempt_with_a_reason(name: str) -> None:
    levels = tomllib.loads((FOLDERS[name] / "quality.toml").read_text())

    assert list(levels) == ["bronze", "silver", "gold", "platinum"]
    rules = [text for level in levels.values() for text in level.values()]
    assert all(re.fullmatch(r"done|todo|exempt: .+", text) for text in rules)
    reached = [text for level in list(levels)[:3] for text in levels[level].values()]
    assert "todo" not in reached


def test_the_error_table_states_the_retry_delays_of_machines() -> None:
    """The driver cannot import the machine controller, so its texts are compared here."""
    for kind in {one.kind for one in refusals.TABLE}:
        said = refusals.machine_retry(kind)
        if kind is cloud.RetryAfter:
            assert said == "after that time"
        elif kind is cloud.ResourceExhausted:
            name = said.strip("`-").replace("-", "_")
            assert name in {one.name for one in dataclasses.fields(flags.SharedFlags)}
        else:
            seconds = creation.SHORT_S if creation.is_transient(kind("x")) else creation.MEDIUM_S
            assert said == {5.0: "5 s", 180.0: "3 min"}[seconds]


async def test_the_fake_refuses_more_names_than_a_network_takes() -> None:
    names = [f"node-{number}" for number in range(101)]

    with pytest.raises(SystemExit, match=r"^use at most 100 names, .*: too many servers"):
        await hcloud_program.run(hcloud_program.build_parser().parse_args(names))


@each_name
def test_the_first_command_of_the_guide_converges(name: str, tmp_path: Path) -> None:
    """Variables of a real account do not reach the daemon."""
    words = guided(FOLDERS[name] / "README.md")[0]

    said = carried_out(tmp_path, words, {**plain(tmp_path), **REAL[name]})

    assert said.startswith("done: 3 machines run, 5 nodes initialised, 2 Services served")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["hcloud", "openstack"])
def test_the_first_command_of_the_guide_converges_with_routes(name: str, tmp_path: Path) -> None:
    """As the guide says about `--routes`."""
    words = [*guided(FOLDERS[name] / "README.md")[0], "--routes"]
    said = carried_out(tmp_path, words, plain(tmp_path))

    assert "5 routes" in said
    assert ", 0 warnings in " in said


@pytest.mark.soak
@each_name
def test_the_other_commands_of_the_guide_work(name: str, tmp_path: Path) -> None:
    """In the end, no resource of the machines is left."""
    _, (_, *program), *exported, sandbox = guided(FOLDERS[name] / "README.md")
    variables = dict(variable.split("=", 1) for _, variable in exported)

    with fake(tmp_path, *program):
        said = carried_out(tmp_path, sandbox, {**plain(tmp_path), **variables})

    assert said.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")
    assert ", 0 warnings in " in said
