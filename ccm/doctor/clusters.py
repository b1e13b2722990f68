"""Clusters beside our own: Machines may have their objects in one, and join another."""

from __future__ import annotations

import asyncio

from ccm.app import clusters
from ccm.app.clients import user_agent
from ccm.doctor.case import PROGRAM, Case
from ccm.gardener.flags import IN_CLUSTER
from ccm.kube import config
from ccm.kube.client import Client
from ccm.kube.errors import KubeError
from ccm.kube.transport import Transport


async def at(case: Case, role: str) -> Client:
    """Calls to the cluster that is so to the machine controllers; mostly that is our own.

    Raises:
        KubeError: its kubeconfig cannot be used.
    """
    file = clusters.elsewhere(case.options).get(role)
    if file is None:
        return case.client
    if role not in case.others:
        path = "" if file == IN_CLUSTER else file
        try:
            found = await asyncio.to_thread(
                config.load, path, environ=case.environ, service_account=case.service_account
            )
        except config.ConfigError as error:
            raise KubeError(f"--{role}-kubeconfig={error}") from error
        wire = Transport(found, user_agent=user_agent(PROGRAM), reads_only=case.reads_only)
        case.others[role] = Client(
            await case.exits.enter_async_context(wire), timeout_s=case.limit_s
        )
    return case.others[role]
