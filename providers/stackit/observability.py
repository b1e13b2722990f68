"""Credentials by which load balancers send their metrics somewhere.

A password cannot be read back. Which one was given last stands as a few digits of a hash in a label
of the load balancer, so that nothing is written as long as it is the same.
"""

from __future__ import annotations

from hashlib import sha256

from ccm import cloud

from . import config, lbapi
from .marks import BALANCER_CREDENTIALS


class Credentials:
    """Those of every load balancer, if the settings have any."""

    def __init__(self, api: lbapi.Client, given: config.Variables) -> None:
        self._api = api
        self.url = given.remotewrite_endpoint
        self._said = {"username": given.remotewrite_user, "password": given.remotewrite_password}
        seed = "\n".join((self.url, *self._said.values()))
        # Too short to try passwords against.
        self.mark = sha256(seed.encode()).hexdigest()[:6] if self.url else ""

    async def ensured(self, held: lbapi.Balancer | None, name: str) -> lbapi.Metrics | None:
        """What a load balancer has to refer to; no request where that is known.

        A new one needs two, and one more for each that an earlier call left behind.
        """
        if not self.url:
            return None
        ref = held.metrics.credentials_ref if held and held.metrics else None
        said = {**self._said, "displayName": name}
        if held is not None and ref is not None:
            if held.label(BALANCER_CREDENTIALS) == self.mark:
                return lbapi.Metrics(credentials_ref=ref, push_url=self.url)
            try:
                await self._api.replace_credentials(ref, said)
            except cloud.NotFound:
                ref = None  # somebody deleted them
        if ref is None:
            await self.remove(name)
            ref = await self._api.create_credentials(said)
        return lbapi.Metrics(credentials_ref=ref, push_url=self.url)

    async def remove(self, name: str) -> None:
        """Take away all that bear a load balancer's name, which must not refer to them any more."""
        for one in await self._api.credentials():
            if one.display_name == name:
                await self._api.delete_credentials(one.credentials_ref)
