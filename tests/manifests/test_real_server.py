"""Manifests and chart on a real API server: accepted strictly, and CRDs outlive the chart."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ccm.gardener import crds, names
from ccm.kubermatic.names import BOOTSTRAP_NAMESPACE
from ccm.sandbox import realserver
from tests.kubectl.tool import Kubectl
from tests.manifests import shipped
from tests.manifests.shipped import CHART, MANIFESTS, VARIANTS
from tests.readme import readme
from tests.servers import require_assets
from tests.waiting import DEADLINE_S, eventually_blocking

OURS = [f"{one.kind.plural}.{one.kind.group}" for one in crds.DEFINITIONS]
MACHINE = {
    "apiVersion": f"{names.GROUP}/{names.VERSION}",
    "kind": "Machine",
    "metadata": {"name": "m0", "finalizers": [names.FINALIZER]},
    "spec": {"class": {"kind": names.CLASS_KIND, "name": "small"}},
}
ON, OFF = "machines.enabled=true", "machines.enabled=false"


class Helm:
    """helm and kubectl at an API server of their own."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self.kubectl = Kubectl(require_assets() / "kubectl", kubeconfig, home)
        self._helm = Kubectl(require_assets() / "helm", kubeconfig, home)
        self._values = [str(word) for word in shipped.value_files(home, {})]

    def __call__(self, verb: str, chart: Path | None = None, *words: str) -> str:
        values = [str(chart), *self._values] if chart is not None else []
        return self._helm(verb, "ccm", *values, "--namespace", shipped.NAMESPACE, *words)

    def made(self) -> None:
        """The CRDs are served, and there is a Machine."""
        found = [f"crd/{name}" for name in OURS]
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *found)
        self.kubectl("create", "-f", "-", stdin=MACHINE)

    def kept(self) -> bool:
        """Whether CRDs and Machine are there, and not on their way out."""
        found = [f"crd/{name}" for name in OURS]
        words = ("--ignore-not-found", "-o", "json")
        text = self.kubectl("get", *found, "machines/m0", *words)
        items: list[dict[str, Any]] = json.loads(text)["items"]
        left = [one for one in items if "deletionTimestamp" not in one["metadata"]]
        return len(left) == len(OURS) + 1


@pytest.fixture
def helm(tmp_path: Path) -> Iterator[Helm]:
    server = realserver.RealServer(assets=require_assets(), data_dir=tmp_path / "server")
    asyncio.run(server.start())
    try:
        yield Helm(server.kubeconfig_path, tmp_path)
    finally:
        asyncio.run(server.stop())


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The chart as it was, without the policy."""
    chart = shutil.copytree(CHART, tmp_path / "former")
    file = chart / "templates" / "crds.yaml"
    text, count = re.subn(
        r" +annotations:\n +helm.sh/resource-policy: keep\n", "", file.read_text()
    )
    assert count == len(OURS)
    file.write_text(text)
    return chart


@pytest.mark.envtest
@pytest.mark.timeout(240)
def test_crds_and_machines_survive_upgrade_rollback_and_uninstall(helm: Helm, former: Path) -> None:
    """Control: with the former chart, which lacks the resource policy, they are deleted.

    With the annotation of the policy, they survive the former chart too.
    """
    helm("install", former, "--set", ON)
    helm.made()
    helm("upgrade", former, "--set", OFF)
    assert not helm.kept()
    helm.kubectl("patch", "machines/m0", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    helm.kubectl("wait", "--for=delete", "--timeout=60s", *(f"crd/{name}" for name in OURS))

    helm("upgrade", former, "--set", ON)
    helm.made()
    (step,) = [
        one
        for one in readme.steps((MANIFESTS / "README.md").read_text())
        if "helm.sh/resource-policy=keep" in one.text
    ]
    helm.kubectl(*step.text.replace("\\\n", " ").split()[1:])
    helm("upgrade", former, "--set", OFF)
    assert helm.kept()

    helm("upgrade", CHART, "--set", ON)
    helm("upgrade", CHART, "--set", OFF)
    assert helm.kept()
    helm("upgrade", CHART, "--set", ON)
    helm("rollback", None, "2")
    assert helm.kept()
    helm("upgrade", CHART, "--set", ON)
    helm("uninstall")
    assert helm.kept()
    # The next release of that name takes them over.
    helm("install", CHART, "--set", ON)
    assert helm.kept()


CRDS = Path(__file__).parent / "monitoring-crds.yaml"


DRY = ("apply", "--dry-run=server", "--validate=strict")


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl at an API server of its own, which knows the kinds of the Prometheus operator."""
    folder = tmp_path_factory.mktemp("dry-run")
    kinds = (CRDS, *(shipped.MANIFESTS / name for name in ("crds.yaml", "kubermatic-crds.yaml")))
    server = realserver.RealServer(assets=require_assets(), data_dir=folder / "server")
    asyncio.run(server.start())
    try:
        kubectl = Kubectl(require_assets() / "kubectl", server.kubeconfig_path, folder)
        for file in kinds:
            kubectl("apply", "-f", str(file))
        # It belongs to the operating-system-manager. No file of ours creates it.
        kubectl("create", "namespace", BOOTSTRAP_NAMESPACE)
        for file in kinds:
            kubectl(
                "wait", "--for=condition=Established", f"--timeout={DEADLINE_S:g}s", "-f", str(file)
            )
        yield kubectl
    finally:
        asyncio.run(server.stop())


@pytest.mark.envtest
def test_requests_of_the_daemon_get_its_own_priority_level(kubectl: Kubectl) -> None:
    """Requests for the Lease keep the level of leader elections; others' requests keep theirs."""
    objects = [str(shipped.FLOW_CONTROL / "flowcontrol.yaml")]
    kubectl("apply", *DRY[2:], "-f", *objects)
    nodes, lease = "/api/v1/nodes", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"

    def uid(kind: str, name: str) -> str:
        return kubectl("get", kind, name, "-o", "jsonpath={.metadata.uid}")

    def headers(path: str, user: str) -> str:
        # The user may read nothing: a refusal has the headers, too.
        return kubectl.run("get", "--raw", path, "--as", user, "-v=8")[1]

    level = uid("prioritylevelconfigurations", shipped.NAME)
    own = uid("flowschemas", shipped.NAME)
    try:
        eventually_blocking(  # the server adopts FlowSchemas by a watch
            lambda: own in headers(nodes, shipped.USER), lambda: headers(nodes, shipped.USER)
        )
        assert level in headers(nodes, shipped.USER)
        leases = headers(lease, shipped.USER)
        assert uid("prioritylevelconfigurations", "leader-election") in leases
        other = headers(nodes, "system:serviceaccount:kube-system:other")
        assert uid("flowschemas", "kube-system-service-accounts") in other
        assert own not in other
    finally:
        kubectl("delete", "-f", *objects)


def accepted(output: str) -> int:
    """Return the number of objects in a dry run. Any other output fails the test."""
    lines = output.splitlines()
    assert [line for line in lines if not line.endswith("(server dry run)")] == []
    return len(lines)


INCOMPLETE = shipped.MANIFESTS / "deployment.yaml"


MACHINE_COMMANDS = {
    "machineController": {"enabled": True, "bootstrapTokens": True},
    "machineControllerManager": {"enabled": True},
}


BASES: Mapping[str, tuple[Path, Sequence[Path]]] = {
    "alone": (MANIFESTS, ()),
    "components": (MANIFESTS, sorted((MANIFESTS / "components").iterdir())),
    "machine-controller": (
        MANIFESTS / "machine-controller",
        [MANIFESTS / "machine-controller" / "bootstrap-tokens"],
    ),
    "machine-controller-manager": (MANIFESTS / "machine-controller-manager", ()),
}


WHOLE = [path for path in shipped.files() if path.name != INCOMPLETE.name]


@pytest.mark.envtest
def test_all_files_and_all_variants_of_the_chart_pass_strict_validation(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    wanted = len(shipped.objects(*WHOLE))
    files = [*WHOLE]
    for name, values in {**VARIANTS, "machine-commands": MACHINE_COMMANDS}.items():
        text = shipped.rendered(tmp_path, values)
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(text)
        wanted += len(shipped.parsed(text))

    words = [f"--filename={file}" for file in files]
    assert accepted(kubectl(*DRY, *words)) == wanted


@pytest.mark.envtest
def test_the_bare_deployment_is_refused_for_its_missing_image(kubectl: Kubectl) -> None:
    status, output = kubectl.run(*DRY, "-f", str(INCOMPLETE))

    assert status != 0
    assert "containers[0].image: Required value" in output


@pytest.mark.envtest
@pytest.mark.parametrize(("base", "components"), BASES.values(), ids=BASES)
def test_each_kustomize_base_passes_strict_validation(
    kubectl: Kubectl, tmp_path: Path, base: Path, components: Sequence[Path]
) -> None:
    folder = shipped.overlay(tmp_path, base=base, components=components)
    objects = shipped.parsed(shipped.kustomized(tmp_path, folder))

    assert "Deployment" in {each["kind"] for each in objects}
    assert accepted(kubectl(*DRY, "-k", str(folder))) == len(objects)
