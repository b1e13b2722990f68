"""Separate accounts: a wire of its own for each service account that somebody acts as."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self

from ccm.base.throttle import Unlimited
from ccm.kube.client import Client
from ccm.kube.serviceaccount import ServiceAccount, acting_as
from ccm.kube.transport import Transport

NAMESPACE = "kube-system"
"""Where the accounts are (Go cloud-provider)."""


class Accounts:
    """The wires of the accounts; an async context manager that closes them.

    Args:
        own: the wire with our own credentials, which may ask for tokens.
    """

    def __init__(self, own: Transport) -> None:
        self._own = own
        self._wires: dict[str, tuple[Transport, ServiceAccount]] = {}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    def of(self, name: str) -> tuple[Transport, str]:
        """The wire of an account, and the name it goes by in user agents."""
        if name not in self._wires:
            asking = Client(self._own, name=name, limiter=Unlimited())
            account = ServiceAccount(asking, namespace=NAMESPACE, name=name)
            wire = Transport(acting_as(self._own.config, account), user_agent=self._own.user_agent)
            self._exits.push_async_exit(wire)
            self._wires[name] = wire, account
        wire, account = self._wires[name]
        return wire, account.user

    def follow(self) -> None:
        """Our own wire uses other TLS material now: so shall those of the accounts."""
        for wire, account in self._wires.values():
            wire.adopt(acting_as(self._own.config, account))
