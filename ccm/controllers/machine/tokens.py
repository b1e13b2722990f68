"""Bootstrap tokens on the API server: created before a VM, deleted once its node has joined.

The Secret of a token is read with an empty patch instead of GET. An admission policy can restrict
patches to our tokens, but not reads; so the service account needs no permission to read all Secrets
of the namespace.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from ccm.base import clock, log, redact
from ccm.kube.client import Resource
from ccm.kube.errors import AlreadyExists, Conflict, Forbidden, NotFound
from ccm.machines import tokens
from ccm.machines.settings import DEFAULT_CREATION_S, MachineSettings
from ccm.model import Secret
from ccm.model.machines import Machine
from ccm.model.names import BOOTSTRAP_TOKEN_TYPE
from ccm.model.times import parse_time

_log = log.logger("machine-controller")  # only Gardener's Machines have tokens

MAX_REDACTED = 64
"""Maximum number of token secrets that are redacted by value: each costs time in every log line. A
whole token, `<id>.<secret>`, is always redacted by its form."""


class TokenIDTaken(Exception):
    """A Secret of another owner has the token ID."""


class Tokens:
    """Bootstrap tokens of all machines.

    Args:
        api: client for Secrets of the cluster that machines join.
    """

    def __init__(self, api: Resource[Secret]) -> None:
        self._api = api
        self._redacted: dict[str, None] = {}
        self._uids: dict[str, str] = {}
        """UID of a machine -> UID of its token's Secret; empty once the Secret is deleted."""
        self._forbidden: set[str] = set()
        """UIDs of machines whose token the API server refused to delete (403) once."""

    @staticmethod
    def new_id() -> str:
        """Return a new random token ID."""
        return tokens.new_id(secrets.choice)

    async def ensure(self, machine: Machine, settings: MachineSettings) -> str:
        """Return the machine's token, `<id>.<secret>`, and create it if it is missing.

        Raises:
            TokenIDTaken: a Secret of another owner has the machine's token ID.
            KubeError: the request failed.
        """
        token_id = machine.annotation(settings.names.token_id)
        secret = tokens.new_secret(secrets.choice)
        expires = tokens.expiration(
            clock.now(), settings.of(machine).creation_timeout_s or DEFAULT_CREATION_S
        )
        data = tokens.secret_data(
            machine=machine.key,
            token_id=token_id,
            secret=secret,
            expires=expires,
            groups=settings.token_groups,
        )
        name = tokens.secret_name(token_id)
        # Before the request: an error message may quote the secret.
        self._redact(machine, secret)
        body = {"metadata": {"name": name}, "type": BOOTSTRAP_TOKEN_TYPE, "stringData": data}
        # Without a response the Secret's UID is unknown; then `delete` reads the UID.
        self._uids.pop(machine.uid, None)
        try:
            created = await self._api.create(body, namespace=tokens.NAMESPACE)
            self._uids[machine.uid] = created.uid
        except AlreadyExists:
            secret = await self._reuse(name, machine, data)
            self._redact(machine, secret)
        except Forbidden as error:
            raise Forbidden(
                status=error.status,
                reason=error.reason,
                message=f"Secret {tokens.NAMESPACE}/{name}: {error.message}; {tokens.GRANT}",
                details=error.details,
            ) from error
        return f"{token_id}.{secret}"

    async def delete(self, machine: Machine, settings: MachineSettings) -> None:
        """Delete the machine's token; a Secret of another owner is kept.

        A 403 may be temporary, for example while RBAC rules or admission policies are replaced. So
        the first 403 is raised, for a retry. The second 403 is only logged, because the token will
        expire.

        Raises:
            KubeError: the request failed.
        """
        token_id = machine.annotation(settings.names.token_id)
        if not tokens.is_id(token_id):
            return
        name = tokens.secret_name(token_id)
        try:
            uid = self._uids.get(machine.uid)
            if uid is None:
                secret = await self._read(name)
                uid = secret.uid if tokens.is_ours(secret.data or {}, machine.key) else ""
            if uid:
                await self._api.delete(name, namespace=tokens.NAMESPACE, uid=uid)
            self._uids[machine.uid] = ""
        except NotFound:
            self._uids[machine.uid] = ""
        except Conflict:
            # The name may belong to another owner's Secret now: the next attempt reads the Secret
            # again.
            self._uids.pop(machine.uid, None)
            raise
        except Forbidden as error:
            if machine.uid not in self._forbidden:
                self._forbidden.add(machine.uid)
                raise
            _log.warning(
                "bootstrap token not deleted", machine=machine.key, secret=name, error=str(error)
            )
        self._release(machine.uid)

    def forget(self, uid: str) -> None:
        """Forget a deleted machine."""
        self._uids.pop(uid, None)
        self._forbidden.discard(uid)
        self._release(uid)

    def _release(self, uid: str) -> None:
        self._redacted.pop(uid, None)
        redact.remove_owner((tokens.NAMESPACE, uid))

    def _redact(self, machine: Machine, secret: str) -> None:
        """Register the secret for redaction; beyond `MAX_REDACTED`, release the oldest secret."""
        self._redacted[machine.uid] = None
        redact.set_owner_secrets((tokens.NAMESPACE, machine.uid), secret)
        if len(self._redacted) > MAX_REDACTED:
            oldest = next(iter(self._redacted))
            del self._redacted[oldest]
            redact.remove_owner((tokens.NAMESPACE, oldest))

    async def _reuse(self, name: str, machine: Machine, data: Mapping[str, str]) -> str:
        """Return the secret of a token from an earlier attempt; extend the token if it has expired.

        Raises:
            TokenIDTaken: a Secret of another owner has the token ID.
            KubeError: the request failed.
        """
        try:
            existing = await self._read(name)
        except Forbidden as error:
            # Forbidden by the admission policy, which allows patches of our own tokens only.
            raise TokenIDTaken(name) from error
        content = existing.data or {}
        if not tokens.is_ours(content, machine.key) or "token-secret" not in content:
            raise TokenIDTaken(name)
        if parse_time(content["expiration"].decode()) < clock.now():
            patch = {
                "metadata": {"uid": existing.uid},
                "stringData": {"expiration": data["expiration"]},
            }
            await self._api.patch_merge(name, patch, namespace=tokens.NAMESPACE)
        return content["token-secret"].decode()

    async def _read(self, name: str) -> Secret:
        return await self._api.patch_merge(name, {}, namespace=tokens.NAMESPACE)
