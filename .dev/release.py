"""Check that this checkout can be released: versions, wheel, installation, chart and image.

Run by `make release-check`, which writes wheel, chart and bill of materials into `dist`. With a
tag, as the release workflow runs it, no check may be skipped, the newest section of the changelog
needs a date, and the metadata the address of the source.
"""

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import run
import yaml
from packaging.metadata import Metadata
from packaging.version import Version
from run import Failed, output

import ccm

PLACES = ("Dockerfile", "README.md", "manifests", "ccm", "providers")
"""Files and folders that name the version."""

NAMED_VERSION = re.compile(
    r"(?:\bkube-ccm:|\bkube_ccm-|/kube-ccm --set image\.tag=|image\.version=)(\d+\.\d+\.\d+)"
)
"""The version in the name of an image or wheel, or in a label."""

HEADING = re.compile(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
VALUES = ("--set=image.repository=registry.example/kube-ccm", "--set=cloud.provider=acme")
"""Required values of the chart."""

BUILD_TOOLS = (
    "import importlib.util as u, shutil; "
    "print(*[n for n in ('hatchling', 'pip', 'setuptools', 'uv') if u.find_spec(n)], "
    "*filter(shutil.which, ('cc', 'gcc', 'make', 'git')))"
)
"""Program for the image's Python that prints the build tools in the image."""

Object = Mapping[str, Any]


class Skipped(Exception):
    """A check cannot run here; the text gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A release to be checked.

    Attributes:
        root: checkout.
        version: of the package.
        scratch: empty folder for the installation.
        tag: git tag of the release; empty: there is none yet.
    """

    root: Path
    version: str
    scratch: Path
    tag: str = ""

    @property
    def dist(self) -> Path:
        """Folder of the files to publish."""
        return self.root / "dist"

    @property
    def wheel(self) -> Path:
        return self.dist / f"kube_ccm-{self.version}-py3-none-any.whl"

    @property
    def chart(self) -> Path:
        return self.dist / f"kube-ccm-{self.version}.tgz"

    @property
    def python(self) -> Path:
        """Interpreter of the installation."""
        return self.scratch / "venv" / "bin" / "python"


def versions(release: Candidate) -> Iterator[str]:
    """Yield each place that names another version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", release.version):
        yield f"ccm/__init__.py: version {release.version}; expected MAJOR.MINOR.PATCH"
    if release.tag not in ("", f"v{release.version}"):
        yield f"tag {release.tag}; expected v{release.version}, the version in ccm/__init__.py"
    chart = yaml.safe_load((release.root / "manifests/chart/Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if chart[field] != release.version:
            yield f"manifests/chart/Chart.yaml: {field} {chart[field]}; expected {release.version}"
    for path in sorted(_texts(release.root)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for version in NAMED_VERSION.findall(line):
                if version != release.version:
                    where = f"{path.relative_to(release.root)}:{number}"
                    yield f"{where}: version {version}; expected {release.version}"
    newest = HEADING.search((release.root / "CHANGELOG.md").read_text())
    version, date = newest.groups() if newest else ("none", "")
    if version != release.version:
        yield f"CHANGELOG.md: newest section {version}; expected {release.version}"
    elif release.tag and date == "unreleased":
        yield f"CHANGELOG.md: section {version} (unreleased); expected the date of the release"


def _texts(root: Path) -> Iterator[Path]:
    for path in map(root.joinpath, PLACES):
        files = path.rglob("*") if path.is_dir() else [path]
        yield from (
            file for file in files if file.suffix in ("", ".md", ".yaml") and file.is_file()
        )


def compatibility(release: Candidate) -> Iterator[str]:
    """Yield the names that the previous minor release has without deprecating them."""
    if not (release.root / ".git").exists():
        raise Skipped("there is no git history")
    if _git(release, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise Skipped("the clone is shallow; run `git fetch --unshallow --tags`")
    tags = re.findall(r"^v\d+\.\d+\.\d+$", _git(release, "tag"), re.MULTILINE)
    minor = Version(release.version).release[:2]
    earlier = [tag for tag in tags if Version(tag).release[:2] < minor]
    if not earlier:
        return
    before = max(earlier, key=Version)
    for path, names in NAMES.items():
        now = set(names((release.root / path).read_text()))
        removed = set(names(_git(release, "show", f"{before}:{path}"))) - now
        yield from (f"{path}: {name} was removed, which {before} has" for name in sorted(removed))


def _git(release: Candidate, *words: str) -> str:
    return output("git", *words, cwd=release.root)


def _fields(text: str) -> Iterator[str]:
    for crd in yaml.safe_load_all(text):
        for version in crd["spec"]["versions"] if crd else ():
            start = f"{crd['metadata']['name']} {version['name']} "
            schema = version["schema"]["openAPIV3Schema"]
            yield from (start + name for name in _properties(schema) if version["served"])


def _properties(schema: Object, start: str = "") -> Iterator[str]:
    """Yield the paths of the properties of a JSON schema that are not deprecated."""
    for name, field in schema.get("properties", {}).items():
        if not field.get("deprecated"):
            yield f"{start}.{name}"
            yield from _properties(field, f"{start}.{name}")
    if isinstance(items := schema.get("items"), Mapping):
        yield from _properties(items, f"{start}[]")


def _flags(text: str) -> Iterator[str]:
    current = re.sub(r"\n## Deprecated names\n.*?(?=\n## |\Z)", "", text, flags=re.DOTALL)
    for row in re.findall(r"^[|*] .*", current, re.MULTILINE):
        if "*Deprecated" not in row:
            yield from re.findall(r"`(--[\w-]+)`", row)[:1]


NAMES: Mapping[str, Callable[[str], Iterator[str]]] = {
    "manifests/crds.yaml": _fields,
    "manifests/kubermatic-crds.yaml": _fields,
    "manifests/chart/values.schema.json": lambda text: _properties(json.loads(text)),
    "ccm/app/FLAGS.md": _flags,
}
"""File -> the names in it that a release must not remove without deprecating them first."""


def wheel(release: Candidate) -> Iterator[str]:
    """Build the wheel; yield the faults of its metadata and content."""
    for old in (*release.dist.glob("kube_ccm-*"), *release.dist.glob("kube-ccm-*")):
        old.unlink()
    build = ("hatchling", "build", "-t", "wheel", "-d", release.dist)
    output(sys.executable, "-m", *build, cwd=release.root)
    if not release.wheel.exists():
        raise Failed(f"the build did not write {release.wheel.name}")
    with zipfile.ZipFile(release.wheel) as file:
        info = f"kube_ccm-{release.version}.dist-info"
        top = {name.split("/")[0] for name in file.namelist()}
        if top != {"ccm", "providers", info}:
            yield f"{release.wheel.name}: {sorted(top)}; expected ccm, providers and {info}"
        yield from metadata_faults(file.read(f"{info}/METADATA"), release)


def metadata_faults(text: bytes, release: Candidate) -> Iterator[str]:
    """Yield the faults of a wheel's metadata."""
    try:
        metadata = Metadata.from_email(text)
    except ExceptionGroup as group:
        yield from (f"metadata: {fault}" for fault in group.exceptions)
        return
    if (metadata.name, str(metadata.version)) != ("kube-ccm", release.version):
        yield f"metadata: {metadata.name} {metadata.version}; expected kube-ccm {release.version}"
    for field in ("summary", "description", "license_expression", "license_files"):
        if not getattr(metadata, field):
            yield f"metadata: {field} is missing; set it in pyproject.toml"
    if metadata.description_content_type != "text/markdown":
        yield f"metadata: description is {metadata.description_content_type}; expected Markdown"
    loose = [str(package) for package in metadata.requires_dist or () if not package.specifier]
    if loose:
        yield f"metadata: no version for {', '.join(loose)}; set one in pyproject.toml"
    if release.tag and not (metadata.project_urls or {}).get("Source", "").startswith("https://"):
        yield "metadata: no address of the source; set project.urls.Source in pyproject.toml"


def installation(release: Candidate) -> Iterator[str]:
    """Install the wheel with the extras of the image into a new environment, and start it."""
    if not release.wheel.exists():
        raise Skipped("there is no wheel")
    output(run.UV, "venv", "--python", sys.executable, release.python.parents[1])
    extras = ",".join(run.image_extras())
    package = f"kube-ccm[{extras}] @ {release.wheel.as_uri()}"
    install = [str(run.UV), "pip", "install", "--quiet", "--python", str(release.python)]
    run.fetch("installing the wheel", [*install, "--constraints", str(run.LOCK), package])
    output(run.UV, "pip", "check", "--python", release.python)
    # As in the image, where nothing is built.
    output(run.UV, "pip", "uninstall", "--python", release.python, *run.image_removed())
    for program in ("cloud-controller-manager", "kube-ccm"):
        answer = _installed(release, program, "--version").strip()
        if answer.split()[-1] != release.version:
            yield f"{program} --version: {answer}; expected {release.version}"


def sandbox(release: Candidate) -> Iterator[str]:
    """Run sandboxes of the installation until the clusters have converged."""
    for words in ((), ("--provider", "openstack")):
        text = _installed(release, "kube-ccm", "sandbox", "--once", *words)
        if not re.search(r"^done: .* 0 warnings", text, re.MULTILINE):
            yield f"{shlex.join(('kube-ccm sandbox', *words))}: unexpected output\n{text}"


def _installed(release: Candidate, program: str, *words: str) -> str:
    path = release.python.parent / program
    if not path.exists():
        raise Skipped("the wheel is not installed")
    # Without variables that would show Python another copy of the code.
    environment = {"HOME": str(release.scratch), "PATH": os.defpath, "LANG": "C.UTF-8"}
    return output(path, *words, cwd=release.scratch, environment=environment)


def bill(release: Candidate) -> Iterator[str]:
    """Write the bill of materials; yield the differences from the installed packages."""
    if not release.python.exists():
        raise Skipped("the wheel is not installed")
    run.sbom([])
    components = json.loads(run.SBOM.read_text())["components"]
    listed = {f"{each['name']}=={each['version']}": each for each in components}
    frozen = output(run.UV, "pip", "freeze", "--python", release.python).splitlines()
    installed = {line for line in frozen if "==" in line}
    for name in sorted(installed - listed.keys()):
        yield f"dist/{run.SBOM.name}: {name} is missing, which the image has"
    for name in sorted(listed.keys() - installed):
        # A component with properties has a marker, which another interpreter may satisfy.
        if not listed[name].get("properties"):
            yield f"dist/{run.SBOM.name}: {name} is listed, which the image lacks"


def chart(release: Candidate) -> Iterator[str]:
    """Package the chart; yield the faults of the package with the default image tag."""
    from tests.envtest import assets

    places = os.pathsep.join([str(assets.assets_dir()), run.ENVIRONMENT["PATH"]])
    helm = shutil.which("helm", path=places)
    if helm is None:
        raise Skipped("there is no helm; `make envtest-assets` builds it")
    folder = release.root / "manifests" / "chart"
    output(helm, "lint", "--strict", folder, *VALUES)
    output(helm, "package", folder, "--destination", release.dist)
    rendered = output(helm, "template", "kube-ccm", release.chart, *VALUES)
    for obj in yaml.safe_load_all(rendered):
        if obj and obj["kind"] == "Deployment":
            image = obj["spec"]["template"]["spec"]["containers"][0]["image"]
            if image != f"registry.example/kube-ccm:{release.version}":
                yield f"{release.chart.name}: image {image}; expected tag {release.version}"


def image(release: Candidate) -> Iterator[str]:
    """Build the image for this machine's platform, and start it."""
    engine = next(filter(_answers, ("docker", "podman")), None)
    if engine is None:
        raise Skipped("no container engine answers (docker, podman)")
    name = f"localhost/kube-ccm:{release.version}"
    try:
        output(engine, "build", "--tag", name, ".", cwd=release.root)
    except Failed as failure:
        if reason := run.UNREACHABLE.search(str(failure)):
            raise Skipped(f"the build has no network ({reason[0]})") from None
        raise
    answer = output(engine, "run", "--rm", name, "--version").strip()
    if answer.split()[-1] != release.version:
        yield f"image: --version prints {answer}; expected {release.version}"
    python = ("--entrypoint", "/opt/ccm/bin/python", name)
    tools = output(engine, "run", "--rm", *python, "-c", BUILD_TOOLS).strip()
    if tools:
        yield f"image: has build tools ({tools}); expected none"


def _answers(engine: str) -> bool:
    try:
        output(engine, "info")
    except (OSError, Failed):
        return False
    return True


CHECKS: Mapping[str, Callable[[Candidate], Iterator[str]]] = {
    "versions": versions,
    "compatibility with the previous minor release": compatibility,
    "wheel": wheel,
    "installation": installation,
    "sandbox": sandbox,
    "bill of materials": bill,
    "chart": chart,
    "image": image,
}


def check(release: Candidate) -> int:
    """Run all checks, print faults and skipped checks; return the exit status."""
    faults, skipped = 0, []
    for name, faults_of in CHECKS.items():
        run.say(name)
        try:
            for fault in faults_of(release):
                faults += 1
                print(fault, flush=True)
        except Skipped as reason:
            skipped.append(f"{name}: {reason}")
        except run.IndexUnreachable:
            skipped.append(f"{name}: the package index does not answer")
        except Failed as failure:
            faults += 1
            print(failure, flush=True)
    for line in skipped:
        run.say(f"SKIPPED {line}")
    run.say(f"faults: {faults}; skipped checks: {len(skipped)} of {len(CHECKS)}")
    return 1 if faults or (skipped and release.tag) else 0


def main(arguments: list[str]) -> int:
    """Check the checkout; the exit status."""
    if len(arguments) > 1 or any(not word.startswith("v") for word in arguments):
        print(f"release-check: {shlex.join(arguments)}; expected nothing, or a tag such as v1.2.3")
        return 2
    with tempfile.TemporaryDirectory(prefix="kube-ccm-") as scratch:
        release = Candidate(
            root=run.ROOT,
            version=ccm.__version__,
            scratch=Path(scratch),
            tag="".join(arguments),
        )
        return check(release)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
