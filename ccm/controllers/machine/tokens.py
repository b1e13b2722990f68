"""Bootstrap tokens on the API server: made before a VM is, deleted when its node has joined.

A Secret is read by an empty patch: admission policies see a patch and not a read, so that the
account needs no right to read all Secrets of the namespace.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from ccm.base import clock, log, redact
from ccm.kube.client import Resource
from ccm.kube.errors import AlreadyExists, Conflict, Forbidden, NotFound
from ccm.machines import tokens
from ccm.machines.settings import Settings
from ccm.model import Secret
from ccm.model.machines import Machine
from ccm.model.names import BOOTSTRAP_TOKEN_TYPE
from ccm.model.times import parse_time

_log = log.logger("machine")

MOST_KNOWN = 64
"""Tokens that redaction knows by their secret alone; with their ID before it all have a form."""


class Taken(Exception):
    """The ID is that of somebody else's token."""


class Tokens:
    """The tokens of all machines.

    Args:
        api: requests about Secrets of the cluster that machines join.
    """

    def __init__(self, api: Resource[Secret]) -> None:
        self._api = api
        self._known: dict[str, None] = {}
        self._uids: dict[str, str] = {}
        """UID of each machine's Secret, by the machine's; empty once it is deleted."""

    @staticmethod
    def new_id() -> str:
        """An ID for a machine that has none."""
        return tokens.new_id(secrets.choice)

    async def ensure(self, machine: Machine, settings: Settings) -> str:
        """The machine's token, `<id>.<secret>`; made where it is not there.

        Raises:
            Taken: its ID is that of a Secret that is not the machine's.
            KubeError: the API server did not answer, or refuses.
        """
        token_id = machine.annotation(settings.names.token_id)
        secret = tokens.new_secret(secrets.choice)
        expires = tokens.expiration(clock.now(), settings.of(machine).creation_timeout_s)
        data = tokens.content(
            machine=machine.key,
            token_id=token_id,
            secret=secret,
            expires=expires,
            groups=settings.token_groups,
        )
        name = tokens.secret_name(token_id)
        # Also before the request: its refusal may quote it.
        self._hold(machine, secret)
        made = {"metadata": {"name": name}, "type": BOOTSTRAP_TOKEN_TYPE, "stringData": data}
        # Without an answer it is not known which Secret bears the name: the deletion reads.
        self._uids.pop(machine.uid, None)
        try:
            created = await self._api.create(made, namespace=tokens.NAMESPACE)
            self._uids[machine.uid] = created.uid
        except AlreadyExists:
            secret = await self._existing(name, machine, data)
            self._hold(machine, secret)
        except Forbidden as error:
            raise Forbidden(
                status=error.status,
                reason=error.reason,
                message=f"Secret {tokens.NAMESPACE}/{name}: {error.message}; {tokens.GRANT}",
                details=error.details,
            ) from error
        return f"{token_id}.{secret}"

    async def delete(self, machine: Machine, settings: Settings) -> None:
        """Delete the token that has served; one that is not the machine's stays.

        A token that may not be deleted expires by itself, and holds nothing up.

        Raises:
            KubeError: the API server did not answer.
        """
        token_id = machine.annotation(settings.names.token_id)
        if not tokens.is_id(token_id):
            return
        name = tokens.secret_name(token_id)
        try:
            uid = self._uids.get(machine.uid)
            if uid is None:
                found = await self._read(name)
                uid = found.uid if tokens.is_ours(found.data or {}, machine.key) else ""
            if uid:
                await self._api.delete(name, namespace=tokens.NAMESPACE, uid=uid)
            self._uids[machine.uid] = ""
        except NotFound:
            self._uids[machine.uid] = ""
        except Conflict:
            # The name may be another's by now: the next attempt reads whose it is.
            self._uids.pop(machine.uid, None)
            raise
        except Forbidden as error:
            _log.warning(
                "bootstrap token not deleted", machine=machine.key, secret=name, error=str(error)
            )
        self._release(machine.uid)

    def forget(self, uid: str) -> None:
        """Forget a machine that is gone."""
        self._uids.pop(uid, None)
        self._release(uid)

    def _release(self, uid: str) -> None:
        self._known.pop(uid, None)
        redact.release((tokens.NAMESPACE, uid))

    def _hold(self, machine: Machine, secret: str) -> None:
        """Have redaction know a token while it lives."""
        self._known[machine.uid] = None
        redact.hold((tokens.NAMESPACE, machine.uid), secret)
        if len(self._known) > MOST_KNOWN:
            oldest = next(iter(self._known))
            del self._known[oldest]
            redact.release((tokens.NAMESPACE, oldest))

    async def _existing(self, name: str, machine: Machine, data: Mapping[str, str]) -> str:
        """The secret of a token that an earlier creation made; it lives on with this one."""
        try:
            found = await self._read(name)
        except Forbidden as error:
            # An admission policy lets through our own tokens only.
            raise Taken(name) from error
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

    async def _read(self, name: str) -> Secret:
        return await self._api.patch_merge(name, {}, namespace=tokens.NAMESPACE)
