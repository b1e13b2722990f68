"""Bootstrap tokens on the API server: made before a VM is, deleted when its node has joined."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from ccm.base import clock, redact
from ccm.kube.errors import AlreadyExists, NotFound
from ccm.machines import tokens, views
from ccm.model import Secret
from ccm.model.names import BOOTSTRAP_TOKEN_TYPE
from ccm.model.times import parse_time

MOST_KNOWN = 64
"""Tokens that redaction knows by their secret alone; with their ID before it all have a form."""


class Secrets(Protocol):
    """What is needed of the resource of Secrets."""

    async def get(self, name: str, *, namespace: str) -> Secret:
        """Read one."""
        ...

    async def create(self, obj: Mapping[str, Any], *, namespace: str) -> Secret:
        """Create one."""
        ...

    async def patch_merge(self, name: str, patch: Mapping[str, Any], *, namespace: str) -> Secret:
        """JSON merge patch."""
        ...

    async def delete(self, name: str, *, namespace: str, uid: str) -> None:
        """Delete one, if it has this UID."""
        ...


class Taken(Exception):
    """The ID is that of somebody else's token."""


class Tokens:
    """The tokens of all machines.

    Args:
        api: requests about Secrets of the cluster that machines join.
    """

    def __init__(self, api: Secrets) -> None:
        self._api = api
        self._known: dict[str, None] = {}

    @staticmethod
    def new_id() -> str:
        """An ID for a machine that has none."""
        return tokens.new_id(secrets.choice)

    async def ensure(self, machine: views.MachineView, rules: views.Rules) -> str:
        """The machine's token, `<id>.<secret>`; made where it is not there.

        Raises:
            Taken: its ID is that of a Secret that is not the machine's.
            KubeError: the API server did not answer, or refuses.
        """
        token_id, secret = machine.annotation(rules.token_id), tokens.new_secret(secrets.choice)
        expires = tokens.expiration(clock.now(), rules.timeout_s(machine))
        data = tokens.content(
            machine=machine.key,
            token_id=token_id,
            secret=secret,
            expires=expires,
            groups=rules.token_groups,
        )
        name = tokens.secret_name(token_id)
        # Also before the request: its refusal may quote it.
        self._hold(machine, secret)
        made = {"metadata": {"name": name}, "type": BOOTSTRAP_TOKEN_TYPE, "stringData": data}
        try:
            await self._api.create(made, namespace=tokens.NAMESPACE)
        except AlreadyExists:
            secret = await self._existing(name, machine, data)
            self._hold(machine, secret)
        return f"{token_id}.{secret}"

    async def delete(self, machine: views.MachineView, rules: views.Rules) -> None:
        """It has served. One that is not the machine's stays. Raises KubeError."""
        token_id = machine.annotation(rules.token_id)
        if not tokens.is_id(token_id):
            return
        name = tokens.secret_name(token_id)
        with contextlib.suppress(NotFound):
            found = await self._api.get(name, namespace=tokens.NAMESPACE)
            if tokens.is_ours(found.data or {}, machine.key):
                await self._api.delete(name, namespace=tokens.NAMESPACE, uid=found.uid)
        self._known.pop(machine.uid, None)
        redact.release((tokens.NAMESPACE, machine.uid))

    def _hold(self, machine: views.MachineView, secret: str) -> None:
        """Have redaction know a token while it lives."""
        self._known[machine.uid] = None
        redact.hold((tokens.NAMESPACE, machine.uid), secret)
        if len(self._known) > MOST_KNOWN:
            oldest = next(iter(self._known))
            del self._known[oldest]
            redact.release((tokens.NAMESPACE, oldest))

    async def _existing(
        self, name: str, machine: views.MachineView, data: Mapping[str, str]
    ) -> str:
        """The secret of a token that an earlier creation made; it lives on with this one."""
        found = await self._api.get(name, namespace=tokens.NAMESPACE)
        known = found.data or {}
        if not tokens.is_ours(known, machine.key) or "token-secret" not in known:
            raise Taken(name)
        if parse_time(known["expiration"].decode()) < clock.now():
            news = {
                "metadata": {"uid": found.uid},
                "stringData": {"expiration": data["expiration"]},
            }
            await self._api.patch_merge(name, news, namespace=tokens.NAMESPACE)
        return known["token-secret"].decode()
