"""Get the real kube-apiserver, etcd, kubectl and helm that tests run against.

And a kube-controller-manager, of whose controllers tests run one or two, in a folder of its own.

`python -m tests.envtest.assets` builds them from the sources that `go.mod`
beside this file pins, with the Go toolchain, into a cache folder. It takes a
few minutes the first time and a moment when they are there already. Without
Go it says which files to fetch by hand. `KUBEBUILDER_ASSETS` names a folder of
ready programs and wins over the cache; nothing is built then.

`python -m tests.envtest.assets v1.37.2` makes another folder, with the kube-apiserver
of that version, of any that the Go module proxy has, and the same other programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAMS = ("etcd", "helm", "kube-apiserver", "kubectl")
"""Programs of a complete folder."""

CONTROLLERS = "kube-controller-manager"
"""Programs of a second folder, for few tests, built from the same modules."""

OTHER_VERSIONS = ("v1.35.4", "v1.37.2")
"""Of Kubernetes: `make soak` tries the daemon with these kube-apiservers, too. The newest
patch of each minor version that Kubernetes supports, but the pinned one."""

ROOT = Path(__file__).resolve().parents[2]

_HERE = Path(__file__).parent
_GO_MODULE = _HERE / "go.mod"
_GO_SUMS = _HERE / "go.sum"
_STAMP = "built-from"
_BUILD_DEADLINE_S = 3600
# `go build` names a program after its folder.
_BUILT_NAMES = {"etcd": "server"}


class AssetsError(Exception):
    """The programs are missing and cannot be built; the text says what to do."""


def kubernetes_version() -> str:
    """The pinned version of Kubernetes, as "v1.36.3"."""
    return _pinned("k8s.io/kubernetes")


def version_of(folder: Path) -> str:
    """Return the version that the kube-apiserver of a folder prints, such as "v1.36.3"."""
    program = str(folder / "kube-apiserver")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split()[-1]


def assets_dir() -> Path:
    """Return the folder of the programs, which may not exist yet."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(given) if given else _cache_of(kubernetes_version())


def _cache_of(version: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ccm" / "envtest" / version


def missing_programs(folder: Path, programs: Sequence[str] = PROGRAMS) -> list[str]:
    """Which of the programs the folder lacks."""
    return [name for name in programs if not (folder / name).is_file()]


def ensure_assets() -> Path:
    """The folder with all programs; builds them where needed.

    Raises:
        AssetsError: they are not there and could not be built.
    """
    return _ensured(assets_dir(), PROGRAMS, _build_tools)


def ensure_version(version: str) -> Path:
    """A folder with all programs, and the kube-apiserver of that version; builds where needed.

    Raises:
        AssetsError: they are not there and could not be built.
    """
    others = ensure_assets()
    if version == kubernetes_version():
        return others
    folder = _cache_of(version)
    recipe = hashlib.sha256(_linker_flags(version).encode()).hexdigest()
    if missing_programs(folder) or _stamp_of(folder) != recipe:
        _put(folder, recipe, lambda fresh: _build_server(version, fresh, others))
    return folder


def controllers_dir() -> Path:
    """Return the folder of the kube-controller-manager, which may not exist yet."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(given) if given else _cache_of(f"{kubernetes_version()}-controllers")


def _ensured(folder: Path, programs: Sequence[str], build: Callable[[Path], None]) -> Path:
    missing = missing_programs(folder, programs)
    if os.environ.get("KUBEBUILDER_ASSETS"):
        if missing:
            raise AssetsError(f"KUBEBUILDER_ASSETS={folder} has no {', '.join(missing)}")
    elif missing or _stamp_of(folder) != _recipe():
        _put(folder, _recipe(), build)
    return folder


def main(versions: Sequence[str] = ()) -> int:
    """Fill the folder, or those of some versions, and print where it is; the exit status."""
    _say(f"programs wanted in {assets_dir()}: {', '.join(PROGRAMS)}")
    started = time.monotonic()
    try:
        folders = [ensure_version(version) for version in versions or [kubernetes_version()]]
        if not versions and not os.environ.get("KUBEBUILDER_ASSETS"):
            folders.append(_ensured(controllers_dir(), (CONTROLLERS,), _build_controllers))
    except AssetsError as trouble:
        print(f"envtest: {trouble}", file=sys.stderr)
        return 1
    for folder in folders:
        _say(f"ready in {folder} ({time.monotonic() - started:.1f} s)")
    return 0


def _pinned(module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", _GO_MODULE.read_text(), re.MULTILINE)
    if found is None:
        raise AssetsError(f"{_GO_MODULE} does not require {module}")
    return found[1]


def _recipe() -> str:
    """Return a digest of all inputs of the build."""
    digest = hashlib.sha256()
    flags = _linker_flags(kubernetes_version())
    for part in (_GO_MODULE.read_bytes(), _GO_SUMS.read_bytes(), flags.encode()):
        digest.update(part)
    return digest.hexdigest()


def _stamp_of(folder: Path) -> str | None:
    try:
        return (folder / _STAMP).read_text().strip()
    except FileNotFoundError:
        return None


def _linker_flags(version: str) -> str:
    """Strip the programs, and stamp the version a release would carry."""
    major, minor, _ = version.removeprefix("v").split(".")
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "unknown",
    }
    stamps = [f"-X k8s.io/component-base/version.{key}={text}" for key, text in facts.items()]
    return " ".join(["-s", "-w", *stamps])


def _require_go(folder: Path) -> None:
    """Raise unless a Go toolchain that satisfies `go.mod` answers."""
    wanted = re.search(r"^go (\d+\.\d+)", _GO_MODULE.read_text(), re.MULTILINE)
    assert wanted is not None
    trouble = "there is no `go` command"
    if shutil.which("go"):
        # Asked in the module's folder, Go itself compares its version with go.mod.
        asked = subprocess.run(
            ["go", "list", "-m"], cwd=_HERE, capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            return
        trouble = asked.stderr.strip()
    raise AssetsError(
        f"cannot build the programs: {trouble}\n"
        f"Either install Go {wanted[1]} or newer, or fetch released programs for your machine:\n"
        f"  kube-apiserver, kubectl, {CONTROLLERS}\n"
        f"                           Kubernetes {kubernetes_version()}: from its release page,\n"
        f"                           the server archive (folder kubernetes/server/bin)\n"
        f"  etcd                     etcd {_pinned('go.etcd.io/etcd/server/v3')}: from its release "
        f"page, the archive for your machine\n"
        f"  helm                     Helm {_pinned('helm.sh/helm/v4')}: from its release page, the "
        f"archive for your\n"
        f"                           machine\n"
        f"Put the five files into one folder, make them executable, and name that folder in\n"
        f"KUBEBUILDER_ASSETS, for example: export KUBEBUILDER_ASSETS={folder}"
    )


def _build_tools(fresh: Path) -> None:
    _run_go(["-mod=readonly"], fresh, "tool", cwd=_HERE, version=kubernetes_version())
    for name, built_name in _BUILT_NAMES.items():
        (fresh / built_name).rename(fresh / name)


def _build_controllers(fresh: Path) -> None:
    """With what `go.mod` pins. What this program needs beyond the others is in the sums of none of
    them, so it is checked by Go's sum database."""
    with tempfile.TemporaryDirectory(dir=fresh.parent) as module:
        for file in (_GO_MODULE, _GO_SUMS):
            shutil.copy(file, module)
        flags = ["-mod=mod", f"-modfile={module}/{_GO_MODULE.name}"]
        what = f"k8s.io/kubernetes/cmd/{CONTROLLERS}"
        _run_go(flags, fresh, what, cwd=_HERE, version=kubernetes_version())


def _build_server(version: str, fresh: Path, others: Path) -> None:
    """Build one kube-apiserver from what the release itself requires; checked by Go's sum database.

    Its parts have versions of their own in the module proxy: v0.37.2 belongs to v1.37.2.
    """
    asked = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"],
        cwd=_HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        raise AssetsError(f"Go cannot get k8s.io/kubernetes {version}: {asked.stdout}")
    release = Path(json.loads(asked.stdout)["GoMod"]).read_text()
    staged = re.findall(r"^\s*(\S+) => \./staging/", release, re.MULTILINE)
    go = re.findall(r"^go \S+$", release, re.MULTILINE)
    part = version.replace("v1.", "v0.", 1)
    replaced = [f"replace {name} => {name} {part}" for name in staged]
    with tempfile.TemporaryDirectory(dir=fresh.parent) as module:
        lines = ["module ccm.invalid/envtest", *go, f"require k8s.io/kubernetes {version}"]
        (Path(module) / "go.mod").write_text("\n".join([*lines, *replaced, ""]))
        server = "k8s.io/kubernetes/cmd/kube-apiserver"
        _run_go(["-mod=mod"], fresh, server, cwd=Path(module), version=version)
    for name in set(PROGRAMS) - {"kube-apiserver"}:
        (fresh / name).symlink_to(others / name)


def _put(folder: Path, recipe: str, build: Callable[[Path], None]) -> None:
    """Build beside `folder` and put the result in its place in one step."""
    _require_go(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as scratch:
        fresh = Path(scratch) / "new"
        fresh.mkdir()
        _say("building with Go; the first time takes some minutes")
        build(fresh)
        (fresh / _STAMP).write_text(recipe + "\n")
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)


def _run_go(flags: Sequence[str], target: Path, what: str, *, cwd: Path, version: str) -> None:
    """Run `go build`, with a sign of life while it works."""
    command = ["go", "build", "-trimpath", "-buildvcs=false", *flags, "-o", f"{target}/"]
    command += ["-ldflags", _linker_flags(version), what]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=cwd) as build:
        while True:
            try:
                status = build.wait(timeout=20)
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - started
                if elapsed > _BUILD_DEADLINE_S:
                    build.kill()
                    raise AssetsError(f"the build took more than {elapsed:.0f} s") from None
                _say(f"still building ({elapsed:.0f} s)")
            else:
                break
    if status != 0:
        raise AssetsError(f"go build failed with status {status}; see its output above")


def _say(line: str) -> None:
    print(f"envtest: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
