"""Finding providers: nothing is imported by looking, and every mistake names its remedy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ccm.cloud import Cloud, Context, ProviderError, provider, registry


class Site:
    """A directory on the import path in which distributions are installed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, dist: str, name: str, target: str, code: str = "", *, v: str = "1.0") -> None:
        """Install a distribution that offers one provider."""
        info = self.path / f"{dist.replace('-', '_')}-{v}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {v}\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {target}\n")
        module = target.partition(":")[0]
        (self.path / f"{module}.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


GOOD = """
from ccm import cloud

@cloud.provider(sdk="1.0")
async def open_cloud(ctx):
    yield cloud.Cloud(name="acme")
"""


async def test_an_installed_provider_is_loaded_and_opens(site: Site) -> None:
    site.install("ccm-acme", "acme", "acme_good:open_cloud", GOOD)

    async with registry.load("acme")(Context()) as cloud:
        assert cloud == Cloud(name="acme")


def test_listing_imports_nothing(site: Site) -> None:
    site.install("ccm-bomb", "bomb", "acme_bomb:x", "raise SystemExit('imported')")

    assert "bomb" in registry.available()
    assert "acme_bomb" not in sys.modules


def test_loading_imports_only_the_chosen(site: Site) -> None:
    site.install("ccm-bomb", "bomb", "acme_bomb2:x", "raise SystemExit('imported')")
    site.install("ccm-acme", "acme", "acme_chosen:open_cloud", GOOD)

    registry.load("acme")

    assert "acme_bomb2" not in sys.modules


def test_an_unknown_name_gets_a_hint_and_the_list(site: Site) -> None:
    site.install("ccm-acme", "acme-cloud", "acme_a:x")
    site.install("ccm-zeta", "zeta", "acme_z:x")

    with pytest.raises(ProviderError) as caught:
        registry.load("acme-clod")

    text = str(caught.value)
    assert "unknown cloud provider 'acme-clod'" in text
    assert "did you mean 'acme-cloud'?" in text
    assert "acme-cloud" in text.partition("Installed providers: ")[2]
    assert "zeta" in text.partition("Installed providers: ")[2]


def test_an_unknown_name_unlike_any_gets_the_list(site: Site) -> None:
    site.install("ccm-zeta", "zeta", "acme_z:x")

    with pytest.raises(ProviderError, match=r"unknown cloud provider 'qqq'.*zeta") as caught:
        registry.load("qqq")

    assert "did you mean" not in str(caught.value)


def test_without_any_provider_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda *, group: ())

    with pytest.raises(ProviderError, match="none; install a provider package"):
        registry.load("acme")


def test_one_name_from_two_distributions_is_fatal_and_names_both(site: Site) -> None:
    site.install("ccm-acme", "acme", "acme_one:x")
    site.install("other-acme", "acme", "acme_two:x", v="2.5")

    with pytest.raises(ProviderError) as caught:
        registry.available()

    assert "'acme' is offered twice" in str(caught.value)
    assert "ccm-acme 1.0" in str(caught.value)
    assert "other-acme 2.5" in str(caught.value)


def test_one_distribution_found_twice_is_no_conflict(
    site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a wheel is installed beside an editable checkout of itself."""
    again = tmp_path_factory.mktemp("again")
    monkeypatch.syspath_prepend(str(again))
    site.install("ccm-acme", "acme", "acme_one:x")
    Site(again).install("ccm-acme", "acme", "acme_one:x")

    assert registry.available()["acme"].value == "acme_one:x"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import nonexistent_vendor_sdk", "No module named 'nonexistent_vendor_sdk'"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("", "AttributeError"),
    ],
    ids=["missing library", "syntax", "own error", "missing function"],
)
def test_a_broken_import_names_its_cause(
    site: Site, code: str, cause: str, request: pytest.FixtureRequest
) -> None:
    module = f"acme_broken_{abs(hash(request.node.name))}"
    site.install("ccm-acme", "acme", f"{module}:open_cloud", code)

    with pytest.raises(ProviderError, match=r"of ccm-acme 1\.0 cannot be imported") as caught:
        registry.load("acme")

    assert cause in str(caught.value)
    assert caught.value.__cause__ is not None


def test_what_is_not_callable_is_refused(site: Site) -> None:
    site.install("ccm-acme", "acme", "acme_number:open_cloud", "open_cloud = 3")

    with pytest.raises(ProviderError, match="acme_number:open_cloud is not callable"):
        registry.load("acme")


@pytest.mark.parametrize("sdk", ["2.0", "1.1", "0.9"])
def test_another_sdk_version_is_refused_by_name(site: Site, sdk: str) -> None:
    module = f"acme_sdk_{sdk.replace('.', '_')}"
    site.install("ccm-acme", "acme", f"{module}:open_cloud", GOOD.replace('"1.0"', f'"{sdk}"'))

    with pytest.raises(ProviderError) as caught:
        registry.load("acme")

    assert f"'acme' of ccm-acme 1.0 needs SDK {sdk}" in str(caught.value)
    assert registry.SDK_VERSION in str(caught.value)


@pytest.mark.parametrize(("number", "sdk"), [(0, "one"), (1, "1"), (2, "1.0.0"), (3, "")])
def test_a_version_that_is_none_is_refused(site: Site, number: int, sdk: str) -> None:
    module = f"acme_version_{number}"
    site.install("ccm-acme", "acme", f"{module}:open_cloud", GOOD.replace('"1.0"', f'"{sdk}"'))

    with pytest.raises(ProviderError, match=r"it must look like '1\.0'"):
        registry.load("acme")


def test_a_provider_without_mark_counts_as_written_for_one(site: Site) -> None:
    code = (
        "from contextlib import asynccontextmanager\n"
        "@asynccontextmanager\n"
        "async def open_cloud(ctx):\n"
        "    yield None\n"
    )
    site.install("ccm-acme", "acme", "acme_bare:open_cloud", code)

    assert callable(registry.load("acme"))


async def test_the_decorator_makes_a_context_manager() -> None:
    closed: list[bool] = []

    @provider(sdk="1.0")
    async def open_cloud(ctx: Context) -> AsyncIterator[Cloud]:
        yield Cloud(name=ctx.cluster_name)
        closed.append(True)

    async with open_cloud(Context(cluster_name="c")) as cloud:
        assert cloud.name == "c"
        assert not closed
    assert closed


@pytest.mark.parametrize("line", ["yield", "return"])
def test_a_forgotten_decorator_is_told(site: Site, line: str) -> None:
    code = f"async def open_cloud(ctx):\n    {line}\n"
    site.install("ccm-bare", "bare", f"acme_bare_{line}:open_cloud", code)

    with pytest.raises(ProviderError, match=r'decorated with @cloud\.provider\(sdk="1\.0"\)'):
        registry.load("bare")
