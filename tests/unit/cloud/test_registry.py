"""Finding providers: nothing is imported by looking, and every mistake names its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.base.flags import PROVIDERS
from ccm.cloud import ProviderError, registry


class Site:
    """A directory on the import path in which distributions are installed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, dist: str, name: str, target: str, code: str = "", *, v: str = "1.0") -> None:
        """Install a distribution that offers one provider."""
        info = self.path / f"{dist.replace('-', '_')}-{v}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {v}\n")
        (info / "entry_points.txt").write_text(f"[{PROVIDERS}]\n{name} = {target}\n")
        module = target.partition(":")[0]
        (self.path / f"{module}.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


GOOD = """
from ccm import cloud

@cloud.provider(sdk="2.0")
async def open_cloud(ctx):
    yield cloud.Cloud(name="acme")
"""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("acme-clod", "; did you mean 'acme-cloud'?"),
        ("qqq", "."),
        (
            "external",
            "; `external` is a value for kubelets, the daemon needs the name of a provider.",
        ),
    ],
)
def test_unknown_provider_error_lists_the_installed_ones_and_a_hint(
    site: Site, name: str, hint: str
) -> None:
    site.install("ccm-acme", "acme-cloud", "acme_a:x")
    site.install("ccm-zeta", "zeta", "acme_z:x")

    with pytest.raises(ProviderError) as caught:
        registry.load_provider(name)

    told, _, known = str(caught.value).partition(" Installed providers: ")
    known, _, way = known.partition(". ")
    assert told == f"unknown cloud provider {name!r}{hint}"
    assert {"acme-cloud", "zeta"} <= set(known.split(", "))
    assert way.startswith("To use another one, install its Python package in the environment or")


def test_provider_name_of_two_distributions_is_an_error_naming_both(site: Site) -> None:
    site.install("ccm-acme", "acme", "acme_one:x")
    site.install("other-acme", "acme", "acme_two:x", v="2.5")

    both = "'acme' is registered twice, by (ccm-acme 1.0|other-acme 2.5) and by (?!\\1)"
    with pytest.raises(ProviderError, match=both):
        registry.installed_providers()


def test_distribution_found_twice_is_no_conflict(
    site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a wheel is installed beside its own editable checkout."""
    again = tmp_path_factory.mktemp("again")
    monkeypatch.syspath_prepend(str(again))
    for each in (site, Site(again)):
        each.install("ccm-acme", "acme", "acme_one:x")

    assert registry.installed_providers()["acme"].value == "acme_one:x"


UNUSABLE = {
    "import nonexistent_vendor_sdk": "No module named 'nonexistent_vendor_sdk'",
    "def broken(:": "SyntaxError",
    "raise RuntimeError('no licence')": "RuntimeError: no licence",
    "": "AttributeError",
    "open_cloud = 3": "unusable4:open_cloud is not callable",
    "async def open_cloud(ctx):\n    yield\n": 'decorated with @cloud.provider(sdk="2.0")',
    "async def open_cloud(ctx):\n    return\n": 'decorated with @cloud.provider(sdk="2.0")',
}


@pytest.mark.parametrize("code", UNUSABLE)
def test_unimportable_provider_is_refused_with_the_cause(site: Site, code: str) -> None:
    site.install("ccm-acme", "acme", f"unusable{list(UNUSABLE).index(code)}:open_cloud", code)

    with pytest.raises(ProviderError) as caught:
        registry.load_provider("acme")

    imported = "cannot be imported" not in str(caught.value)
    assert UNUSABLE[code] in str(caught.value)
    assert (caught.value.__cause__ is None) is imported
    assert imported or "of ccm-acme 1.0 cannot" in str(caught.value)


RETURNS = GOOD.replace("yield cloud", "return cloud")
MISWRITTEN = {
    "returns": (RETURNS, "open_cloud is not an async generator function; use `async def`, and"),
    "not async": (GOOD.replace("async ", ""), "open_cloud is not an async generator function"),
    "offers": (
        GOOD.replace('"2.0"', '"2.0", offers=("instance",)'),
        "offers: 'instance' is not a field of Cloud; did you mean 'instances'?",
    ),
}


@pytest.mark.parametrize("what", MISWRITTEN)
def test_malformed_provider_is_refused_with_the_cause(site: Site, what: str) -> None:
    code, told = MISWRITTEN[what]
    site.install("ccm-acme", "acme", f"miswritten_{what.replace(' ', '_')}:open_cloud", code)

    with pytest.raises(ProviderError) as caught:
        registry.load_provider("acme")

    assert str(caught.value).startswith(f"cloud provider 'acme' of ccm-acme 1.0: {told}")


@pytest.mark.parametrize("sdk", ["3.0", "2.1", "0.9", "one", "2", "2.0.0", ""])
def test_other_sdk_version_is_refused_with_both_versions(site: Site, sdk: str) -> None:
    module = f"acme_sdk_{sdk.replace('.', '_')}"
    site.install("ccm-acme", "acme", f"{module}:open_cloud", GOOD.replace('"2.0"', f'"{sdk}"'))
    is_version = sdk in ("3.0", "2.1", "0.9")
    said = f"needs SDK {sdk}, the daemon has 2.0;" if is_version else "it must look like '2.0'"

    with pytest.raises(ProviderError, match=f"'acme' of ccm-acme 1.0 .*{said}"):
        registry.load_provider("acme")


BARE = GOOD.replace("from ccm import cloud", "from contextlib import asynccontextmanager").replace(
    '@cloud.provider(sdk="2.0")', "@asynccontextmanager"
)


@pytest.mark.parametrize(
    ("module", "code"),
    [("acme_bare", BARE), ("acme_for_one", GOOD.replace("2.0", "1.0"))],
    ids=["unmarked", "marked"],
)
def test_provider_for_sdk_1_gets_the_migration_steps(site: Site, module: str, code: str) -> None:
    site.install("ccm-acme", "acme", f"{module}:open_cloud", code)

    with pytest.raises(ProviderError) as caught:
        registry.load_provider("acme")

    told = str(caught.value)
    assert told.startswith(
        "cloud provider 'acme' of ccm-acme 1.0 was written for SDK 1.0, the daemon has 2.0"
    )
    assert told.endswith(f'then decorate {module}:open_cloud with @cloud.provider(sdk="2.0")')
