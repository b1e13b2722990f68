"""Clouds in which Machines are provisioned: fakes always, real ones if there are credentials."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from providers.openstack.testing import __main__ as openstack_program
from providers.openstack.testing import state as openstack_state
from providers.stackit.testing import server as stackit_server
from tests import servers
from tests.scenario import harness
from tests.scenario.harness import Environment
from tests.scenario.kubermatic import FLAGS
from tests.vendors import clouds
from tests.waiting import DEADLINE_S

REAL_S = 35 * 60.0
"""How long a real cloud may take for each step of a scenario."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """An API server and a cloud.

    Attributes:
        env: no daemon runs yet.
        how: a daemon is started.
        values: of the placeholders that this cloud needs.
        held: how many things of each kind the cloud holds; empty: only the cloud knows.
    """

    env: Environment
    how: Mapping[str, Any]
    values: Mapping[str, str]
    held: Callable[[], Mapping[str, int]] = dict


Opener = Callable[[servers.ApiServer, Path], AbstractAsyncContextManager[Site]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A provider and its cloud.

    Attributes:
        package: name of the provider in its files, the value of `cloudProvider`.
        systems: operating systems that it serves.
        unsupported: operating system and variant of the test data that it refuses; None = none.
        open: opens a site.
        is_real: whether servers cost money.
    """

    package: str
    systems: Sequence[str]
    unsupported: tuple[str, str] | None
    open: Opener = field(repr=False)
    is_real: bool = False

    @property
    def within_s(self) -> float:
        """How long each step of a scenario may take."""
        return REAL_S if self.is_real else DEADLINE_S

    @property
    def at_once(self) -> int:
        """How many scenarios run at once: a new project may have few servers."""
        return 2 if self.is_real else 100

    def __str__(self) -> str:
        return f"{self.package}-{'real' if self.is_real else 'fake'}"


# --- fakes ----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _vendor(
    vendor: clouds.Vendor,
    values: Mapping[str, str],
    api_server: servers.ApiServer,
    folder: Path,
) -> AsyncIterator[Site]:
    async with vendor.opened(api_server, folder) as (env, _):
        how = {**vendor.how, "flags": {**vendor.how["flags"], **FLAGS}}
        yield Site(env=env, how=how, values=values, held=vendor.held)


def _hetzner(api_server: servers.ApiServer, folder: Path) -> AbstractAsyncContextManager[Site]:
    vendor = clouds.Hcloud()
    return _vendor(vendor, {"HZ_E2E_TOKEN": vendor.fake.token}, api_server, folder)


def _stackit(api_server: servers.ApiServer, folder: Path) -> AbstractAsyncContextManager[Site]:
    vendor = clouds.Stackit()
    values = {
        "PROJECT_ID": stackit_server.PROJECT,
        "SERVICE_ACCOUNT_KEY": vendor.fake.account.key.decode(),
        "REGION": stackit_server.REGION,
        "IMAGE_ID": stackit_server.IMAGE,
        "NETWORK_ID": stackit_server.NETWORK,
    }
    values = {f"STACKIT_E2E_{name}": text for name, text in values.items()}
    return _vendor(vendor, values, api_server, folder)


@contextlib.asynccontextmanager
async def _openstack(api_server: servers.ApiServer, folder: Path) -> AsyncIterator[Site]:
    vendor = clouds.OpenStack()
    number, secret = vendor.fake.identity.app_credential
    values = {
        "APPLICATION_CREDENTIAL_ID": number,
        "APPLICATION_CREDENTIAL_SECRET": secret,
        "REGION": openstack_state.REGION,
        "FLAVOR": openstack_program.FLAVOR,
        "IMAGE": openstack_program.IMAGE,
        "NETWORK": openstack_program.NETWORK,
    }
    async with _vendor(vendor, {}, api_server, folder) as site:
        values["AUTH_URL"] = f"{vendor.fake.url}/identity/v3"
        named = {f"OPENSTACK_E2E_{name}": text for name, text in values.items()}
        yield replace(site, values=named)


@contextlib.asynccontextmanager
async def _sim(api_server: servers.ApiServer, folder: Path) -> AsyncIterator[Site]:
    async with harness.open_environment(api_server, folder) as env:
        yield Site(
            env=env,
            how={"flags": FLAGS},
            values={"SIM_E2E_TOKEN": env.cloud.token},
            held=lambda: {"vms": len(env.cloud.world.snapshot())},
        )


# --- real clouds ----------------------------------------------------------------------------------


def _real(provider: str, config: str, values: Mapping[str, str], env: Mapping[str, str]) -> Opener:
    @contextlib.asynccontextmanager
    async def opened(api_server: servers.ApiServer, folder: Path) -> AsyncIterator[Site]:
        async with harness.open_environment(api_server, folder) as site:
            site.cloud_config.write_text(config)
            site.cloud_config.chmod(0o600)
            flags = {**FLAGS, "cloud-provider": provider, "inventory-max-age": "30s"}
            yield Site(env=site, how={"flags": flags, "env": env}, values=values)

    return opened


HETZNER: Mapping[str, Any] = {
    "package": "hetzner",
    "systems": ("ubuntu", "rockylinux"),
    "unsupported": ("flatcar", ""),
}
STACKIT: Mapping[str, Any] = {
    "package": "stackit",
    "systems": ("ubuntu",),
    "unsupported": ("ubuntu", "noimage"),
}
OPENSTACK: Mapping[str, Any] = {
    "package": "openstack",
    "systems": ("ubuntu",),
    "unsupported": ("ubuntu", "noimage"),
}


def targets(environ: Mapping[str, str]) -> Sequence[Target]:
    """All fakes, and each real cloud whose credentials are there."""
    found = [
        Target(**HETZNER, open=_hetzner),
        Target(**STACKIT, open=_stackit),
        Target(**OPENSTACK, open=_openstack),
        Target(package="sim", systems=("ubuntu", "flatcar"), unsupported=None, open=_sim),
    ]
    given = {name: text for name, text in environ.items() if "_E2E_" in name and text}
    if token := given.get("HZ_E2E_TOKEN"):
        opener = _real("hcloud", f"HCLOUD_TOKEN: {token}\n", given, {})
        found.append(Target(**HETZNER, open=opener, is_real=True))
    project, key = (
        given.get(f"STACKIT_E2E_{name}") for name in ("PROJECT_ID", "SERVICE_ACCOUNT_KEY")
    )
    if project and key:
        region = given.setdefault("STACKIT_E2E_REGION", "eu01")
        config = f"global: {{projectId: {project}, region: {region}}}\n"
        opener = _real("stackit", config, given, {"STACKIT_SERVICE_ACCOUNT_KEY": key})
        found.append(Target(**STACKIT, open=opener, is_real=True))
    url, number, secret = (
        given.get(f"OPENSTACK_E2E_{name}")
        for name in ("AUTH_URL", "APPLICATION_CREDENTIAL_ID", "APPLICATION_CREDENTIAL_SECRET")
    )
    if url and number and secret:
        settings = {
            "auth-url": url,
            "application-credential-id": number,
            "application-credential-secret": secret,
            "region": given.setdefault("OPENSTACK_E2E_REGION", ""),
        }
        lines = [f'{key} = "{text}"' for key, text in settings.items() if text]
        opener = _real("openstack", "\n".join(["[Global]", *lines, ""]), given, {})
        found.append(Target(**OPENSTACK, open=opener, is_real=True))
    return found
