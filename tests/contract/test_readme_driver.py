"""The machine driver printed in `providers/README.md` keeps the contract of drivers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.testing.contract import Harness, MachineContract
from providers.sim import server, state
from tests.contract.test_sim import SimHarness
from tests.readme import readme

NAME = "ccm_tiny"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module that the README shows."""
    file: Path = tmp_path_factory.mktemp("tiny") / f"{NAME}.py"
    file.write_text(readme.files()[file.name])
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


class TinyHarness(SimHarness):
    """Moves the simulated cloud."""

    def __init__(self, driver: ModuleType, service: server.Service, url: str) -> None:
        super().__init__(service, url)
        self._driver = driver

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        context = cloud.Context(environ={"TINY_URL": self._url})
        opened: AbstractAsyncContextManager[cloud.Cloud] = self._driver.open_cloud(context)
        return opened

    open_machines = open

    def machine_spec(self) -> Mapping[str, Any]:
        return {"type": "big", "labels": {}}

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"type": 4}


class TestTiny(MachineContract):
    """Every case."""

    @pytest_asyncio.fixture
    async def harness(self, driver: ModuleType) -> AsyncIterator[Harness]:
        service = server.Service(settings=state.Settings(transition_s=0.0))
        async with server.serve(service) as url:
            yield TinyHarness(driver, service, url)
