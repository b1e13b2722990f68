"""Get the real kube-apiserver, etcd, kubectl and helm that tests run against.

`python -m tests.envtest.assets` builds them from the sources that `go.mod`
beside this file pins, with the Go toolchain, into a cache folder. It takes a
few minutes the first time and a moment when they are there already. Without
Go it says which files to fetch by hand. `KUBEBUILDER_ASSETS` names a folder of
ready programs and wins over the cache; nothing is built then.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = ("etcd", "helm", "kube-apiserver", "kubectl")
"""What the folder holds when it is complete."""

_HERE = Path(__file__).parent
_GO_MODULE = _HERE / "go.mod"
_GO_SUMS = _HERE / "go.sum"
_STAMP = "built-from"
_BUILD_DEADLINE_S = 3600
# `go build` names a program after its folder.
_BUILT_NAMES = {"etcd": "server"}


class AssetsError(Exception):
    """The programs are not there and cannot be built; the text says what to do."""


def kubernetes_version() -> str:
    """The pinned version of Kubernetes, as "v1.36.3"."""
    return _pinned("k8s.io/kubernetes")


def assets_dir() -> Path:
    """The folder where the programs are, or will be."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ccm" / "envtest" / kubernetes_version()


def missing_programs(folder: Path) -> list[str]:
    """Which of `PROGRAMS` the folder lacks."""
    return [name for name in PROGRAMS if not (folder / name).is_file()]


def ensure_assets() -> Path:
    """The folder with all programs; builds them where needed.

    Raises:
        AssetsError: they are not there and could not be built.
    """
    folder = assets_dir()
    missing = missing_programs(folder)
    if os.environ.get("KUBEBUILDER_ASSETS"):
        if missing:
            raise AssetsError(f"KUBEBUILDER_ASSETS={folder} has no {', '.join(missing)}")
        return folder
    recipe = _recipe()
    if not missing and _stamp_of(folder) == recipe:
        return folder
    _require_go(folder)
    _build(folder, recipe)
    return folder


def main() -> int:
    """Fill the folder and print where it is; the exit status."""
    _say(f"programs wanted in {assets_dir()}: {', '.join(PROGRAMS)}")
    started = time.monotonic()
    try:
        folder = ensure_assets()
    except AssetsError as trouble:
        print(f"envtest: {trouble}", file=sys.stderr)
        return 1
    _say(f"ready in {folder} ({time.monotonic() - started:.1f} s)")
    return 0


def _pinned(module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", _GO_MODULE.read_text(), re.MULTILINE)
    if found is None:
        raise AssetsError(f"{_GO_MODULE} does not require {module}")
    return found[1]


def _recipe() -> str:
    """A digest of everything that decides what comes out of the build."""
    digest = hashlib.sha256()
    for part in (_GO_MODULE.read_bytes(), _GO_SUMS.read_bytes(), _linker_flags().encode()):
        digest.update(part)
    return digest.hexdigest()


def _stamp_of(folder: Path) -> str | None:
    try:
        return (folder / _STAMP).read_text().strip()
    except FileNotFoundError:
        return None


def _linker_flags() -> str:
    """Strip the programs, and stamp the version a release would carry."""
    version = kubernetes_version()
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
        f"  kube-apiserver, kubectl  Kubernetes {kubernetes_version()}: from its release page,\n"
        f"                           the server archive (folder kubernetes/server/bin)\n"
        f"  etcd                     etcd {_pinned('go.etcd.io/etcd/server/v3')}: from its release "
        f"page, the archive for your machine\n"
        f"  helm                     Helm {_pinned('helm.sh/helm/v4')}: from its release page, the "
        f"archive for your\n"
        f"                           machine\n"
        f"Put the four files into one folder, make them executable, and name that folder in\n"
        f"KUBEBUILDER_ASSETS, for example: export KUBEBUILDER_ASSETS={folder}"
    )


def _build(folder: Path, recipe: str) -> None:
    """Build beside `folder` and put the result in its place in one step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as scratch:
        fresh = Path(scratch) / "new"
        fresh.mkdir()
        _say("building with Go; the first time takes some minutes")
        _run_go(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", f"{fresh}/"])
        for name, built_name in _BUILT_NAMES.items():
            (fresh / built_name).rename(fresh / name)
        (fresh / _STAMP).write_text(recipe + "\n")
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)


def _run_go(arguments: list[str]) -> None:
    """Run `go build` on the module's tools, with a sign of life while it works."""
    command = ["go", *arguments, "-ldflags", _linker_flags(), "tool"]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=_HERE) as build:
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
    sys.exit(main())
