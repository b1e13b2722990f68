"""The release: its workflow, its checks, and the policy for versions."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import ccm
from ccm.cloud import SDK_VERSION
from tests.architecture.sources import ROOT
from tests.envtest import assets

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
VERSIONS = (ROOT / "manifests" / "guides" / "versions.md").read_text()
MINIMAL = {
    "test": {"contents": "read"},
    "publish": {
        "contents": "write",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    },
}
"""Job -> its permissions."""


def workflow() -> dict[Any, Any]:
    return dict(yaml.safe_load(WORKFLOW.read_text()))


def steps() -> Iterator[dict[str, Any]]:
    for job in workflow()["jobs"].values():
        yield from job["steps"]


def scripts() -> list[str]:
    return [step["run"] for step in steps() if "run" in step]


def test_actions_of_the_workflow_are_pinned_with_their_version() -> None:
    used = re.findall(r"\buses:.*", WORKFLOW.read_text())

    assert len(used) == sum("uses" in step for step in steps()) > 0
    pinned = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in used if not pinned.fullmatch(line)] == []
    text = "\n".join(scripts())
    images = re.findall(r"\b(?:docker run .*? |image=|generator=)(\w+/\w+\S*)", text)
    assert len(images) == 3
    assert [
        name for name in images if not re.search(r":v?[\w.-]+@sha256:[0-9a-f]{64}$", name)
    ] == []


def test_permissions_of_the_workflow_are_minimal() -> None:
    jobs = workflow()["jobs"]

    assert workflow()["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == MINIMAL
    assert jobs["publish"]["needs"] == "test"
    assert all(job["timeout-minutes"] for job in jobs.values())
    checkouts = [step["with"] for step in steps() if "checkout" in step.get("uses", "")]
    # Else any later step could push to the repository with the token in .git/config.
    assert [each["persist-credentials"] for each in checkouts] == [False] * len(jobs)


def test_the_workflow_runs_for_tags_of_versions_only() -> None:
    # YAML 1.1 reads the key `on` as true.
    assert workflow()[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}


def test_scripts_of_the_workflow_are_valid_and_call_existing_targets(tmp_path: Path) -> None:
    assert workflow()["defaults"]["run"]["shell"] == "bash"
    for text in scripts():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        # A value of the event in a script would be run by the shell.
        assert "${{" not in text
    everything = "\n".join(scripts())
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = re.findall(r"\bmake ([\w-]+)", everything)
    assert targets == ["release-check"]
    assert set(targets) <= set(phony.split())
    files = re.findall(r"(?<!\S)((?:\.ci|manifests)/\S+|CHANGELOG\.md)", everything)
    assert len(files) == 4
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_release_notes_are_the_newest_section_of_the_changelog(tmp_path: Path) -> None:
    (command,) = re.findall(r"^(awk .*) > notes\.md$", "\n".join(scripts()), re.MULTILINE)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 2 (b)\n\n* new\n\n## 1 (a)\n\n* old\n")

    notes = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True)

    assert notes.stdout == b"## 2 (b)\n\n* new\n\n"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / ".dev")
    return importlib.import_module("release")


NewCandidate = Callable[..., Any]


@pytest.fixture
def candidate(release: ModuleType, tmp_path: Path) -> NewCandidate:
    def new(root: Path = ROOT, version: str = ccm.__version__, tag: str = "") -> Any:
        return release.Candidate(root=root, version=version, tag=tag, scratch=tmp_path)

    return new


def test_all_files_name_the_version_of_the_package(
    release: ModuleType, candidate: NewCandidate
) -> None:
    assert list(release.versions(candidate())) == []


FILES = {
    "CHANGELOG.md": "# Changes\n\n## 1.2.3 (2026-01-02)\n",
    "Dockerfile": "LABEL org.opencontainers.image.version=1.2.3\n",
    "README.md": "pip install dist/kube_ccm-1.2.3-py3-none-any.whl\n",
    "ccm/README.md": "docker push registry.example.com/kube-ccm:1.2.3\n",
    "manifests/chart/Chart.yaml": "version: 1.2.3\nappVersion: 1.2.3\n",
    "providers/README.md": "x.example.com/kube-ccm --set image.tag=1.2.3\n",
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_consistent_versions_of_a_release_have_no_fault(
    release: ModuleType, candidate: NewCandidate, tmp_path: Path
) -> None:
    root = write(tmp_path, FILES)

    assert list(release.versions(candidate(root, "1.2.3", "v1.2.3"))) == []


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("Dockerfile", None, "Dockerfile:1: version 1.2.2; expected 1.2.3"),
        ("README.md", None, "README.md:1: version 1.2.2; expected 1.2.3"),
        ("ccm/README.md", None, "ccm/README.md:1: version 1.2.2; expected 1.2.3"),
        ("providers/README.md", None, "providers/README.md:1: version 1.2.2; expected 1.2.3"),
        (
            "manifests/chart/Chart.yaml",
            "version: 1.2.3\nappVersion: 1.2.2\n",
            "manifests/chart/Chart.yaml: appVersion 1.2.2; expected 1.2.3",
        ),
        (
            "CHANGELOG.md",
            "## 1.2.2 (2026-01-02)\n",
            "CHANGELOG.md: newest section 1.2.2; expected 1.2.3",
        ),
        (
            "CHANGELOG.md",
            "## 1.2.3 (unreleased)\n",
            "CHANGELOG.md: section 1.2.3 (unreleased); expected the date of the release",
        ),
    ],
)
def test_each_different_version_is_named_with_its_place(
    release: ModuleType,
    candidate: NewCandidate,
    tmp_path: Path,
    file: str,
    text: str | None,
    fault: str,
) -> None:
    changed = text or FILES[file].replace("1.2.3", "1.2.2")
    root = write(tmp_path, {**FILES, file: changed})

    assert list(release.versions(candidate(root, "1.2.3", "v1.2.3"))) == [fault]


def test_an_unreleased_changelog_is_a_fault_only_with_a_tag(
    release: ModuleType, candidate: NewCandidate, tmp_path: Path
) -> None:
    root = write(tmp_path, {**FILES, "CHANGELOG.md": "## 1.2.3 (unreleased)\n"})

    assert list(release.versions(candidate(root, "1.2.3"))) == []


def test_a_tag_names_the_version(
    release: ModuleType, candidate: NewCandidate, tmp_path: Path
) -> None:
    faults = list(release.versions(candidate(write(tmp_path, FILES), "1.2.3", "v1.2.4")))

    assert faults == ["tag v1.2.4; expected v1.2.3, the version in ccm/__init__.py"]


METADATA = """\
Metadata-Version: 2.4
Name: kube-ccm
Version: 1.2.3
Summary: a manager
License-Expression: Apache-2.0
License-File: LICENSE
Project-URL: Source, https://git.example.com/kube-ccm
Requires-Dist: aiohttp>=3
Description-Content-Type: text/markdown

# kube-ccm
"""


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("Version: 1.2.3", "Version: 1.2.2", "kube-ccm 1.2.2; expected kube-ccm 1.2.3"),
        ("Summary: a manager\n", "", "summary is missing"),
        ("License-File: LICENSE\n", "", "license_files is missing"),
        ("Apache-2.0", "Apache", "license"),
        ("text/markdown", "text/plain", "description is text/plain; expected Markdown"),
        ("aiohttp>=3", "aiohttp", "no version for aiohttp"),
        ("Project-URL: Source, https://git.example.com/kube-ccm\n", "", "project.urls.Source"),
    ],
)
def test_faults_of_the_metadata_are_named(
    release: ModuleType, candidate: NewCandidate, before: str, after: str, fault: str
) -> None:
    checked = candidate(version="1.2.3", tag="v1.2.3")
    assert list(release.metadata_faults(METADATA.encode(), checked)) == []
    text = METADATA.replace(before, after)
    assert text != METADATA

    (found,) = release.metadata_faults(text.encode(), checked)

    assert found.startswith("metadata: ")
    assert fault in found


def crd(*fields: str) -> str:
    schema: Any = {"properties": {"spec": {"properties": {name: {} for name in fields}}}}
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}}
    return json.dumps({"metadata": {"name": "things"}, "spec": {"versions": [version]}})


def names(*, fields: str, values: Mapping[str, Any], flags: str) -> Mapping[str, str]:
    return {
        "manifests/crds.yaml": crd(*fields),
        "manifests/kubermatic-crds.yaml": crd(),
        "manifests/chart/values.schema.json": json.dumps({"properties": values}),
        "ccm/app/FLAGS.md": flags,
    }


def git(root: Path, *words: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *author, *words], cwd=root, capture_output=True, check=True)


FLAGS = """
| `--kept` | bool |
| `--removed` | bool |
| `--leaving` | bool | *Deprecated: use another.* |

## Deprecated names

* `--former`: use --kept

## Without effect

* `--ignored`
"""


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A checkout with the tags v0.1.0 and v0.1.1, in which the version 0.2.0 is written."""
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init")
    values = {"kept": {}, "removed": {}, "leaving": {"deprecated": True}}
    for patch in range(2):
        write(root, names(fields="abc"[patch:], values=values, flags=FLAGS))
        git(root, "add", ".")
        git(root, "commit", "-m", "a")
        git(root, "tag", f"v0.1.{patch}")
    return root


def test_removed_names_that_were_not_deprecated_are_faults(
    release: ModuleType, candidate: NewCandidate, released: Path
) -> None:
    assert list(release.compatibility(candidate(released, "0.2.0"))) == []
    write(released, names(fields="c", values={"kept": {}}, flags="| `--kept` | bool |"))

    faults = list(release.compatibility(candidate(released, "0.2.0")))

    assert [fault.replace(" was removed, which v0.1.1 has", "") for fault in faults] == [
        "manifests/crds.yaml: things v1 .spec.b",
        "manifests/chart/values.schema.json: .removed",
        "ccm/app/FLAGS.md: --ignored",
        "ccm/app/FLAGS.md: --removed",
    ]
    assert list(release.compatibility(candidate(released, "0.1.2"))) == []


def test_names_of_all_compared_files_are_found(release: ModuleType) -> None:
    found = {path: set(read((ROOT / path).read_text())) for path, read in release.NAMES.items()}

    expected = {
        "manifests/crds.yaml": "machines.machine.sapcloud.io v1alpha1 .spec.providerID",
        "manifests/kubermatic-crds.yaml": "machines.cluster.k8s.io v1alpha1 .spec.providerID",
        "manifests/chart/values.schema.json": ".image.repository",
        "ccm/app/FLAGS.md": "--cloud-provider",
    }
    assert {path: expected[path] in names for path, names in found.items()} == dict.fromkeys(
        expected, True
    )


def test_a_shallow_clone_cannot_be_compared(
    release: ModuleType, candidate: NewCandidate, released: Path
) -> None:
    shallow = released.parent / "shallow"
    git(released, "clone", "--depth=1", released.as_uri(), str(shallow))

    with pytest.raises(release.Skipped, match="git fetch --unshallow --tags"):
        list(release.compatibility(candidate(shallow, "0.2.0")))


def test_only_a_release_fails_for_skipped_checks(
    release: ModuleType,
    candidate: NewCandidate,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def skipped(_release: Any) -> Iterator[str]:
        raise release.Skipped("no engine")

    def failing(_release: Any) -> Iterator[str]:
        yield "a fault"
        raise release.Failed("an exit status")

    def offline(_release: Any) -> Iterator[str]:
        release.run.fetch("installing", ["sh", "-c", "echo 'Failed to fetch: x'; exit 2"])
        yield "never"

    monkeypatch.setattr(release, "CHECKS", {"wheel": offline, "image": skipped})
    assert release.check(candidate()) == 0
    assert capsys.readouterr().out.endswith(
        "== SKIPPED wheel: the package index does not answer\n"
        "== SKIPPED image: no engine\n"
        "== faults: 0; skipped checks: 2 of 2\n"
    )
    assert release.check(candidate(tag="v0.1.0")) == 1

    monkeypatch.setattr(release, "CHECKS", {"wheel": failing})
    assert release.check(candidate()) == 1
    assert "a fault\nan exit status\n== faults: 2;" in capsys.readouterr().out
    assert release.main(["0.1.0"]) == 2


ENGINE = """\
#!/bin/sh
case "$*" in
    info) exit {status} ;;
    "build --tag localhost/kube-ccm:{version} .") ;;
    "run --rm localhost/kube-ccm:{version} --version") echo "manager {prints}" ;;
    *entrypoint*) echo {tools} ;;
    *) exit 9 ;;
esac
"""


@pytest.mark.parametrize(
    ("prints", "tools", "faults"),
    [
        (ccm.__version__, "", []),
        ("0.0.1", "", ["--version prints manager 0.0.1"]),
        (ccm.__version__, "pip gcc", ["has build tools (pip gcc)"]),
    ],
)
def test_the_image_is_built_and_started(
    release: ModuleType,
    candidate: NewCandidate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prints: str,
    tools: str,
    faults: list[str],
) -> None:
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir()
    monkeypatch.setitem(release.run.ENVIRONMENT, "PATH", f"{engine.parent}:/usr/bin:/bin")
    with pytest.raises(release.Skipped, match="no container engine answers"):
        list(release.image(candidate()))

    for status in (1, 0):
        engine.write_text(
            ENGINE.format(status=status, version=ccm.__version__, prints=prints, tools=tools)
        )
        engine.chmod(0o755)
        if status:
            with pytest.raises(release.Skipped, match="no container engine answers"):
                list(release.image(candidate()))

    found = list(release.image(candidate()))

    assert len(found) == len(faults)
    assert all(fault in one for fault, one in zip(faults, found, strict=True))


@pytest.mark.parametrize(
    ("printed", "fault"),
    [
        ("ERROR: failed to do request: dial tcp: lookup registry-1.docker.io: no such host", None),
        ("Error: pinging container registry docker.io: dial tcp 192.0.2.1:443: i/o timeout", None),
        ("Temporary failure in name resolution", None),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "DO NOT MATCH THE HASHES"),
    ],
)
def test_only_a_build_without_network_is_skipped(
    release: ModuleType,
    candidate: NewCandidate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    fault: str | None,
) -> None:
    engine = tmp_path / "docker"
    engine.write_text(f"#!/bin/sh\n[ $1 = info ] && exit 0\necho '{printed}'\nexit 1\n")
    engine.chmod(0o755)
    monkeypatch.setitem(release.run.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(
        release.Failed if fault else release.Skipped, match=fault or "has no network"
    ):
        list(release.image(candidate()))


def test_build_tools_are_found_where_they_are(release: ModuleType) -> None:
    tools = release.output(sys.executable, "-c", release.BUILD_TOOLS).split()

    assert {"hatchling", "git"} <= set(tools)


def test_the_bill_of_materials_covers_the_installed_packages(
    release: ModuleType, candidate: NewCandidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = candidate()
    checked.python.parent.mkdir(parents=True)
    checked.python.touch()
    monkeypatch.setattr(release.run, "sbom", lambda _arguments: None)
    monkeypatch.setattr(release, "output", lambda *command: "a==1\nb==2\nkube-ccm @ file:///x\n")
    monkeypatch.setattr(release.run, "SBOM", write(tmp_path, {"a": "{}"}) / "bill.json")
    marker = [{"name": "uv:package:marker", "value": "sys_platform == 'win32'"}]
    listed: list[Any] = [{"name": name, "version": "1"} for name in "ac"]
    listed.append({"name": "d", "version": "1", "properties": marker})
    release.run.SBOM.write_text(json.dumps({"components": listed}))

    assert list(release.bill(checked)) == [
        "dist/bill.json: b==2 is missing, which the image has",
        "dist/bill.json: c==1 is listed, which the image lacks",
    ]


def test_the_guide_names_the_tested_kubernetes_versions() -> None:
    tested = {assets.kubernetes_version(), *assets.OTHER_VERSIONS}
    minors = sorted(version.removeprefix("v").rpartition(".")[0] for version in tested)

    text = f"supports Kubernetes {', '.join(minors[:-1])} and {minors[-1]}:"
    assert text in VERSIONS
    assert f"Versions before {minors[0]} are not tested" in VERSIONS.replace("\n", " ")


def test_the_guide_names_the_limits_of_the_chart_and_the_sdk() -> None:
    chart = yaml.safe_load((ROOT / "manifests" / "chart" / "Chart.yaml").read_text())
    (least,) = re.findall(r"The chart installs on Kubernetes (\S+) and newer", VERSIONS)

    assert chart["kubeVersion"] == f">={least}.0-0"
    assert f'@cloud.provider(sdk="{SDK_VERSION}")' in VERSIONS
