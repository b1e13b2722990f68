"""`kube-ccm sandbox`: one clear message for each mistake, and settings for everything else."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from ccm import cli
from ccm import sandbox as settings
from ccm.cli import sandbox


def read(*arguments: str) -> settings.SandboxSettings:
    parser = cli.build_parser()
    return sandbox.read(parser.parse_args(["sandbox", *arguments]), parser.error)


@pytest.fixture(autouse=True)
def _no_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sandbox.ASSETS_VARIABLE, raising=False)


def test_sandbox_arguments_become_settings() -> None:
    words = ["--nodes", "2", "--latency", "50ms", "--once", "--timeout", "1m", "--keep"]
    read_ = read(*words, "--picture", "demo.svg")

    assert read_ == settings.SandboxSettings(
        node_names=("node-0001", "node-0002"),
        latency=timedelta(milliseconds=50),
        once=True,
        timeout_s=60.0,
        keep=True,
        picture=Path("demo.svg").absolute(),
    )


def test_provider_runs_with_its_fake_unless_a_config_is_given(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(CLASS)
    fake = read("--provider", "stackit", "--machines", "2")
    mine = ("--machine-class", str(tmp_path / "c"))
    real = read("--provider", "stackit", "--provider-config", "/dev/null", "--machines", "2", *mine)

    assert fake.provider == settings.SandboxProvider(
        name="stackit", fake="providers.stackit.testing"
    )
    assert (len(fake.node_names), fake.services, fake.machines) == (5, 2, 2)
    assert real.provider is not None
    assert (real.provider.fake, real.node_names, real.services) == ("", (), 0)


def test_routes_are_enabled_by_default_only_in_the_simulated_cloud() -> None:
    assert read().routes
    assert not read("--cloud-provider", "sim").routes
    assert read("--cloud-provider", "sim", "--routes").routes


CLASS = "kind: MachineClass\nmetadata: {name: small}\n"


def test_machines_are_created_only_when_requested(tmp_path: Path) -> None:
    assert (read().machines, read("--machines", "3").machines) == (0, 3)
    assert len(read("--machines", "3").node_names) == 5
    (tmp_path / "c").write_text(CLASS)

    own = read("--provider", "sim", "--machines", "2", "--machine-class", str(tmp_path / "c"))

    assert own.node_names == ()
    assert own.provider is not None
    assert [one["kind"] for one in own.provider.machine_objects] == ["MachineClass"]
    assert own.instances


def test_file_of_kubermatic_machines_has_a_machine_deployment() -> None:
    file = Path(__file__).parents[3] / "manifests/examples/sim-machinedeployment.yaml"
    words = ("--provider", "sim", "--machines", "2", "--machine-api", "kubermatic")

    own = read(*words, "--machine-class", str(file))

    assert read("--machines", "2").machine_api == "gardener"
    assert own.machine_api == "kubermatic"
    assert own.provider is not None
    kinds = [one["kind"] for one in own.provider.machine_objects]
    assert kinds == ["Secret", "MachineDeployment"]


def test_folder_without_an_api_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(sandbox.ASSETS_VARIABLE, str(tmp_path))
    (tmp_path / "etcd").touch()
    with pytest.raises(SystemExit):
        read()
    (tmp_path / "kube-apiserver").touch()

    assert f"KUBEBUILDER_ASSETS={tmp_path}: kube-apiserver missing" in capsys.readouterr().err
    assert read().assets == tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "c does not exist or cannot be read"),
        ("", "0 objects of kind MachineClass; exactly one is required"),
        ("a: [", "line 1"),
        ("- a", "kind (none) is not allowed; expected MachineClass, Secret"),
        (f"{CLASS}---\nkind: Pod", "kind Pod is not allowed; expected MachineClass, Secret"),
        ("kind: Secret", "Secret has no metadata.name"),
        (
            "kind: Secret\nmetadata: {name: s, namespace: x}",
            "Secret s: metadata.namespace is 'x'; a sandbox needs 'default'",
        ),
    ],
    ids=["absent", "empty", "broken", "list", "pod", "nameless", "elsewhere"],
)
def test_invalid_machine_class_file_is_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit):
        read("--provider", "sim", "--machines", "2", "--machine-class", str(file))

    said = capsys.readouterr().err.splitlines()[-1]
    assert f"--machine-class: {file}" in said
    assert message in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "argument --nodes: '0' is not a number from 1 to 10000"),
        (["--nodes", "many"], "argument --nodes: 'many' is not a number from 1 to 10000"),
        (["--services", "1001"], "argument --services: '1001' is not a number from 0 to 1000"),
        (["--latency", "50"], "argument --latency: '50' is not a duration"),
        (["--latency=-1s"], "argument --latency: -1s is negative"),
        (["--node-names", "a,,b"], "argument --node-names: '' is not a valid node name"),
        (["--node-names", "a,a"], "argument --node-names: a is given twice"),
        (["--node-names", "a", "--nodes", "1"], "--nodes and --node-names exclude each other"),
        (["--timeout", "5s"], "--timeout needs --once"),
        (
            ["--cloud-provider", "acme"],
            "unknown cloud provider 'acme'. Installed providers: hcloud, openstack, sim, stackit",
        ),
        (["--cloud-config", "x"], "--cloud-config needs --cloud-provider"),
        (["--routes"], "--routes needs --cloud-provider"),
        (["--machine-class", "x"], "--machine-class needs --cloud-provider"),
        (["--machine-api", "kubermatic"], "--machine-api needs --machines"),
        (["--machine-api", "cluster-api", "--machines", "1"], "invalid choice: 'cluster-api'"),
        (["--machines", "1001"], "argument --machines: '1001' is not a number from 0 to 1000"),
        (["--cloud-provider", "sim", "--machines", "1"], "give both --machines"),
        (["--cloud-provider", "sim", "--machine-class", "x"], "give both --machines"),
        (["--cloud-provider", "sim", "--latency", "1s"], "cannot be used with --cloud-provider"),
        (
            ["--cloud-provider", "sim", "--cloud-config", "/absent"],
            "--cloud-config: /absent does not exist or cannot be read",
        ),
        (
            ["--picture", "/absent/demo.svg"],
            "--picture: /absent/demo.svg cannot be written; name a file in an existing folder",
        ),
        (["extra"], "argument ACT: invalid choice: 'extra'"),
        (["poweroff"], "the following arguments are required: NODE"),
        (["add", "a,b"], "argument NODE: 'a,b' is not a valid node name"),
    ],
)
def test_sandbox_argument_error_is_one_clear_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["sandbox", *arguments])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said.splitlines()[-1]
    assert said.count("error:") == 1


def test_sandbox_subcommand_without_a_running_sandbox_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert cli.main(["sandbox", "delete", "node-0001"]) == 1

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"kube-ccm sandbox delete: no sandbox runs in {tmp_path}; start one with kube-ccm sandbox\n"
    )
