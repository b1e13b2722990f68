"""User data of Kubermatic's MachineDeployments, in place of the operating-system-manager.

For each MachineDeployment the writer keeps a Secret with user data for the newest revision of the
template. The user data contain a bootstrap token, which the writer creates once for a deployment.
VMs of the simulated cloud do not read them.
"""

from __future__ import annotations

import contextlib
import secrets
from datetime import timedelta

from ccm.base import clock
from ccm.kube.client import Client
from ccm.kube.errors import AlreadyExists
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import SECRETS
from ccm.kubermatic import names
from ccm.kubermatic.codec import MACHINE_DEPLOYMENTS
from ccm.machines import tokens
from ccm.model.machines import MachineDeployment
from ccm.model.names import BOOTSTRAP_TOKEN_TYPE
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult, Watch

TOKEN_LIFETIME = timedelta(days=1)
"""Lifetime of a bootstrap token; long, because the sandbox does not renew tokens."""

_TEMPLATE = "#cloud-config\nhostname: <MACHINE_NAME>\n# joins with {token}\n"


class UserDataWriter:
    """Keeps the Secret with user data of each MachineDeployment up to date.

    Args:
        informers: informers; the caller runs them.
        client: client without a rate limit.
        namespace: namespace of the MachineDeployments.

    Attributes:
        controller: controller that writes the Secrets; the caller runs it.
    """

    def __init__(self, informers: SharedInformers, client: Client, namespace: str) -> None:
        self._deployments = informers.informer_for(MACHINE_DEPLOYMENTS, namespace=namespace)
        self._api = client.resource(SECRETS)
        self._tokens: dict[str, str] = {}
        """UID of a MachineDeployment -> its bootstrap token."""
        self.controller = Controller(
            "user-data",
            queue="sandbox-user-data",
            reconcile=self.sync,
            watches=[Watch(informer=self._deployments, changed=_has_new_revision)],
        )

    async def sync(self, key: str) -> ReconcileResult:
        """Write the user data of a MachineDeployment for its newest revision.

        Raises:
            KubeError: a request failed.
        """
        obj = self._deployments.store.get(key)
        if obj is None or not (revision := obj.annotations.get(names.ANNOTATION_REVISION)):
            return IDLE
        if obj.uid not in self._tokens:
            self._tokens[obj.uid] = await self._create_token(obj)
        name = names.bootstrap_secret(obj.name, obj.namespace)
        body = {
            "metadata": {
                "name": name,
                "annotations": {names.ANNOTATION_BOOTSTRAP_REVISION: revision},
            },
            "stringData": {
                names.BOOTSTRAP_KEY: _TEMPLATE.format(token=self._tokens[obj.uid]),
            },
        }
        with contextlib.suppress(AlreadyExists):
            await self._api.create(body, namespace=names.BOOTSTRAP_NAMESPACE)
            return DONE
        await self._api.patch_merge(name, body, namespace=names.BOOTSTRAP_NAMESPACE)
        return DONE

    async def _create_token(self, obj: MachineDeployment) -> str:
        """Return a new bootstrap token, `<id>.<secret>`."""
        token_id, secret = tokens.new_id(secrets.choice), tokens.new_secret(secrets.choice)
        data = tokens.secret_data(
            machine=obj.key,
            token_id=token_id,
            secret=secret,
            expires=clock.now() + TOKEN_LIFETIME,
            groups="",
        )
        data["description"] = f"Bootstrap token for the machines of MachineDeployment {obj.key}."
        body = {
            "metadata": {"name": tokens.secret_name(token_id)},
            "type": BOOTSTRAP_TOKEN_TYPE,
            "stringData": data,
        }
        await self._api.create(body, namespace=tokens.NAMESPACE)
        return f"{token_id}.{secret}"


def _has_new_revision(
    old: MachineDeployment | None, new: MachineDeployment | None, initial: bool
) -> bool:
    if new is None:
        return False
    key = names.ANNOTATION_REVISION
    return initial or old is None or old.annotations.get(key) != new.annotations.get(key)
