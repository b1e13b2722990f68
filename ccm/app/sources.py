"""The files that are followed: the provider's, the kubeconfig, our own configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from ccm.app.options import FLAGS, Options, checks, config
from ccm.app.options.argv import UsageError
from ccm.app.provider import Misconfigured
from ccm.app.reload import Refused
from ccm.app.tenant import Opening, Tenant
from ccm.base import log
from ccm.base.files import Signature, signature
from ccm.cloud import errors as cloud_errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud, InstancesV2, Inventory
from ccm.kube import config as kube_config
from ccm.kube import errors as kube_errors
from ccm.kube import pinned
from ccm.kube.client import Client
from ccm.kube.transport import Transport
from ccm.model import Node

NO_MORE: Mapping[Path, Signature] = MappingProxyType({})

LIVE = frozenset({"v", "vmodule"})
"""Settings of the configuration file that are taken over while the process runs."""


class CloudConfig:
    """The provider's configuration: the provider is opened anew.

    Args:
        path: the file.
        opening: opens a provider with the file's content of now, trying once.
        tenant: the provider in use.
        handle: the controllers' handle to it.
        accept: has the last word on a new provider.
        followed: the files that the provider follows; `opening` brings it up to date.
    """

    name = "cloud-config"

    def __init__(
        self,
        path: Path,
        opening: Opening,
        *,
        tenant: Tenant,
        handle: Handle,
        accept: Callable[[Cloud], Awaitable[None]],
        followed: dict[Path, Signature],
    ) -> None:
        self.path = path
        self.more = followed
        self._opening = opening
        self._tenant = tenant
        self._handle = handle
        self._accept = accept

    async def use(self) -> str:
        """Exchange the provider. Raises Refused."""
        before = dict(self.more)
        self.more.clear()
        try:
            await self._exchange()
        except Refused:
            # The old provider stays, and what the new one lacks may come.
            self.more.update({**before, **self.more})
            raise
        return "the provider was opened anew"

    async def _exchange(self) -> None:
        try:
            await self._tenant.exchange(self._opening, self._handle, self._accept)
        except Misconfigured as error:
            raise Refused(str(error)) from error
        except Exception as error:
            raise Refused(str(cloud_errors.normalized(error)), final=False) from error


async def answers(cloud: Cloud, node: Node | None) -> None:
    """Make a first call that changes nothing; raises CloudError if the cloud does not answer.

    Args:
        cloud: what the provider yielded.
        node: any node, for providers that list nothing; None = do without.
    """
    handle = Handle(cloud)
    try:
        if cloud.inventory is not None:
            await handle.call(Inventory.list_instances)
        elif cloud.instances is not None and node is not None:
            await handle.call(InstancesV2.instance_exists, node)
    except (cloud_errors.NotFound, cloud_errors.Unimplemented):
        return


def read_cluster(
    file: str, master: str, environ: Mapping[str, str]
) -> tuple[kube_config.ClusterConfig, Mapping[Path, Signature]]:
    """How to reach the API server, and the files that say so beside a kubeconfig; blocking.

    Raises:
        ConfigError: there is no way to know.
    """
    found = kube_config.load(file, master, environ=environ)
    more = {path: signature(path) for path in pinned.files(found)}
    # What cannot be read yet is left to follow its files by itself, and said by who needs it.
    with suppress(OSError, ValueError):
        found = pinned.pinned(found)
    return found, MappingProxyType(more)


class Kubeconfig:
    """How we reach the API server and as whom: new credentials take over.

    The files that the kubeconfig names count as a part of it; inside a cluster those of the
    service account are all there is.

    Args:
        file: the kubeconfig; empty inside a cluster.
        wire: what is used now.
        master: `--master`.
        environ: for exec plugins.
        adopted: called when the wire has other credentials.
        more: the files named by what is used now, as they looked before they were read.
    """

    def __init__(
        self,
        file: str,
        wire: Transport,
        *,
        master: str,
        environ: Mapping[str, str],
        adopted: Callable[[], None] = lambda: None,
        more: Mapping[Path, Signature] = NO_MORE,
    ) -> None:
        self.name = "kubeconfig" if file else "service-account"
        token = next(iter(more), kube_config.SERVICE_ACCOUNT / "token")
        self.path = Path(file) if file else token
        self.more = more
        self._file = file
        self._wire = wire
        self._master = master
        self._environ = environ
        self._adopted = adopted

    async def use(self) -> str:
        """Try the credentials, then take them over. Raises Refused."""
        try:
            found, self.more = await asyncio.to_thread(
                read_cluster, self._file, self._master, self._environ
            )
        except kube_config.ConfigError as error:
            raise Refused(str(error)) from error
        if found.server != self._wire.config.server:
            raise Refused(f"it names another server, {found.server}; restart to use it")
        try:
            await self._try(found)
        except kube_errors.KubeError as error:
            raise Refused(str(error), final=False) from error
        self._wire.adopt(found)
        self._adopted()
        return "new credentials are in use"

    async def _try(self, found: kube_config.ClusterConfig) -> None:
        wire = Transport(found, user_agent=self._wire.user_agent)
        async with wire:
            # Forbidden is an answer too: the server knows who we are.
            with suppress(kube_errors.Forbidden):
                await Client(wire).raw("GET", "/api/v1", retry=False)


class Configuration:
    """Our own configuration file: how much is logged changes at once, the rest at a restart.

    Args:
        given: the settings in force; what the command line said stays.
    """

    name = "config"

    def __init__(self, given: Options) -> None:
        self.path = Path(given.config)
        self.more = NO_MORE
        self._given = given
        self._now = given

    async def use(self) -> str:
        """Read the file. Raises Refused."""
        try:
            found = await asyncio.to_thread(config.reread, self._given)
            checks.check(found)
        except UsageError as error:
            raise Refused(str(error)) from error
        changed = [name for name in FLAGS if found.get(name) != self._now.get(name)]
        self._now = found
        log.change(found.v, found.vmodule)
        later = [name for name in changed if name not in LIVE]
        if later:
            return f"at the next start: {', '.join(later)}"
        return f"changed: {', '.join(changed) or 'nothing'}"
