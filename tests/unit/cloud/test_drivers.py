"""Machine drivers are opened by name, without a cloud config, several at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.cloud import ProviderError
from ccm.cloud.drivers import open_drivers
from tests.unit.cloud.test_registry import Site

DRIVER = """
from ccm import cloud

opened = []

@cloud.provider(sdk="2.0")
async def open_cloud(ctx):
    opened.append(ctx.config)
    yield cloud.Cloud(name="alone", machines=cloud.Driver(None))
    opened.append("closed")
"""

CONFIGURED = """
import msgspec
from ccm import cloud

class Config(cloud.Settings):
    url: str

@cloud.provider(sdk="2.0")
async def open_machines(ctx):
    yield cloud.Cloud(name="both", machines=cloud.Driver("alone"))

@cloud.provider(sdk="2.0", config=Config, machines=open_machines)
async def open_cloud(ctx):
    ctx.settings(Config)
    yield cloud.Cloud(name="both", machines=cloud.Driver("beside others"))

@cloud.provider(sdk="2.0", config=Config)
async def open_strict(ctx):
    ctx.settings(Config)
    yield cloud.Cloud(name="strict", machines=cloud.Driver(None))

@cloud.provider(sdk="2.0")
async def open_without(ctx):
    yield cloud.Cloud(name="without")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    site = Site(tmp_path)
    site.install("ccm-alone", "alone", "driver_alone:open_cloud", DRIVER)
    for name in ("cloud", "strict", "without"):
        site.install(f"ccm-{name}", name, f"driver_configured:open_{name}", CONFIGURED)
    return site


@pytest.mark.usefixtures("site")
async def test_several_are_open_at_once_and_closed_together() -> None:
    async with open_drivers(["alone", "cloud", "alone"]) as found:
        assert list(found) == ["alone", "cloud"]
        assert found["cloud"].machines is not None
        assert vars(found["cloud"].machines) == {"spi": "alone"}

    import driver_alone  # type: ignore[import-not-found]

    assert driver_alone.opened == [b"", "closed"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("strict", "'strict' cannot be opened for its machines alone, .* url"),
        ("without", "'without' has no machines"),
        ("nimbus", "unknown cloud provider 'nimbus'"),
    ],
)
@pytest.mark.usefixtures("site")
async def test_one_that_cannot_be_used_so_is_refused(name: str, told: str) -> None:
    with pytest.raises(ProviderError, match=told):
        async with open_drivers(["alone", name]):
            pass
