"""The programs are built once, put in place whole, or explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envtest import assets

# A `go` that checks nothing, writes the programs and counts its builds.
GO = """#!/bin/sh
if [ "$1" = list ]; then echo example; exit 0; fi
if [ "$1" = mod ]; then echo '{{"GoMod": "{release}"}}'; exit 0; fi
[ "$PWD" = "{home}" ] || cp go.mod "{calls}.mod"
echo build >> "{calls}"
[ -z "{trouble}" ] || exit 1
names="server helm kube-apiserver kubectl"
case "$*" in
  *cmd/kube-apiserver) names=kube-apiserver;;
  *cmd/kube-controller-manager) names=kube-controller-manager;;
esac
while [ "$1" != -o ]; do shift; done
for name in $names; do echo "$name" > "$2/$name"; done
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "cache" / "ccm" / "envtest" / assets.kubernetes_version()


def install_go(folder: Path, trouble: str = "") -> Path:
    calls = folder / "calls"
    program = folder / "go"
    release = folder / "release.mod"
    release.write_text("go 1.27\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n")
    home = Path(assets.__file__).parent
    program.write_text(GO.format(calls=calls, trouble=trouble, release=release, home=home))
    program.chmod(0o755)
    return calls


def test_programs_are_built_once(tmp_path: Path, cache: Path) -> None:
    calls = install_go(tmp_path)
    assert assets.main() == 0
    assert assets.main() == 0
    assert calls.read_text() == "build\n" * 2
    assert (cache / "etcd").read_text() == "server\n"
    assert assets.missing_programs(cache) == []
    beside = cache.parent / f"{cache.name}-controllers"
    assert sorted(cache.parent.iterdir()) == [cache, beside]
    assert {path.name for path in beside.iterdir()} == {assets.CONTROLLERS, "built-from"}


def test_programs_of_another_recipe_are_built_anew(tmp_path: Path, cache: Path) -> None:
    calls = install_go(tmp_path)
    assert assets.main() == 0
    (cache / "built-from").write_text("another")
    assert assets.main() == 0
    assert calls.read_text() == "build\n" * 3


def test_another_version_has_its_own_folder_and_shares_the_other_programs(
    tmp_path: Path, cache: Path
) -> None:
    calls = install_go(tmp_path)
    assert assets.main(["v1.99.3"]) == 0
    assert assets.main(["v1.99.3"]) == 0
    assert calls.read_text() == "build\n" * 2
    other = cache.parent / "v1.99.3"
    assert assets.missing_programs(other) == []
    assert (other / "etcd").resolve() == cache / "etcd"
    assert not (other / "kube-apiserver").is_symlink()
    assert Path(f"{calls}.mod").read_text().splitlines() == [
        "module ccm.invalid/envtest",
        "go 1.27",
        "require k8s.io/kubernetes v1.99.3",
        "replace k8s.io/api => k8s.io/api v0.99.3",
    ]


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    install_go(tmp_path, trouble="yes")
    assert assets.main() == 1
    assert list(cache.parent.iterdir()) == []


def test_without_go_the_files_to_fetch_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert assets.main() == 1
    told = capsys.readouterr().err
    for word in (*assets.PROGRAMS, assets.kubernetes_version(), "KUBEBUILDER_ASSETS", "Go 1.26"):
        assert word in told


def test_a_given_folder_wins_and_is_never_built_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = install_go(tmp_path)
    given = tmp_path / "given"
    given.mkdir()
    (given / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(given))
    assert assets.main() == 1
    assert "no helm, kube-apiserver, kubectl" in capsys.readouterr().err
    for name in assets.PROGRAMS:
        (given / name).touch()
    assert assets.main() == 0
    assert assets.assets_dir() == given
    assert not calls.exists()
