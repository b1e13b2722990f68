"""The daemon's own service account on a real API server, with the rights that are shipped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp

from tests.manifests import shipped
from tests.manifests.shipped import Object, Right
from tests.waiting import DEADLINE_S

TOKEN_LIFE_S = 7200

_POLL_S = 0.05
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def token(session: aiohttp.ClientSession) -> str:
    """A token of the account; account and rights are made where they are missing.

    Args:
        session: of an administrator.
    """
    await install(session, shipped.objects(*shipped.identity_files()))
    return await token_of(session, shipped.NAME)


async def token_of(session: aiohttp.ClientSession, name: str) -> str:
    """A token of an account that is there."""
    path = shipped.collection("ServiceAccount", shipped.NAMESPACE) + f"/{name}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_LIFE_S},
    }
    return str((await _post(session, path, body, good=(201,)))["status"]["token"])


async def grant_separate_accounts(session: aiohttp.ClientSession) -> None:
    """Grant the rights that `--use-service-account-credentials` needs in addition."""
    await install(session, shipped.objects(shipped.SEPARATE_ACCOUNTS / "rbac.yaml"))


async def install(
    session: aiohttp.ClientSession, objects: Sequence[Object], user: str = shipped.USER
) -> None:
    """Create objects that are missing, and wait until their rights are in force for a user."""
    news = [await _created(session, each) for each in objects]
    if any(news):
        await _in_force(session, shipped.rights(objects), user)
        for each in objects:
            if each["kind"] == shipped.POLICY:
                await _limited(session, each["metadata"]["name"], user)


async def _created(session: aiohttp.ClientSession, made: Object) -> bool:
    path = shipped.collection(made["kind"], made["metadata"].get("namespace", ""))
    answer: Object = await _post(session, path, made, good=(201, 409))
    return str(answer["kind"]) != "Status"


async def _in_force(session: aiohttp.ClientSession, rights: Iterable[Right], user: str) -> None:
    """The authorizer learns of new roles by a watch, a moment after they were made."""
    deadline = time.monotonic() + DEADLINE_S
    for right in rights:
        while not await _allowed(session, right, user):
            assert time.monotonic() < deadline, f"{right} is not in force"
            await asyncio.sleep(_POLL_S)


async def _limited(session: aiohttp.ClientSession, policy: str, user: str) -> None:
    """Wait until the API server has read a policy: it refuses any other Secret."""
    path = "/api/v1/namespaces/kube-system/secrets?dryRun=All"
    headers = {"Impersonate-User": user}
    deadline = time.monotonic() + DEADLINE_S
    while True:
        body = {"metadata": {"name": "foreign"}}
        async with session.post(path, json=body, headers=headers) as response:
            text = await response.text()
        if response.status == 403 and policy in text:
            return
        assert time.monotonic() < deadline, f"{policy} is not in force: {text}"
        await asyncio.sleep(_POLL_S)


async def _allowed(session: aiohttp.ClientSession, right: Right, user: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "namespace": right.namespace,
        "name": right.names[0] if right.names else "",
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    review: Object = await _post(session, _REVIEWS, body, good=(201,))
    return bool(review["status"]["allowed"])


async def _post(
    session: aiohttp.ClientSession, path: str, body: Object, *, good: Sequence[int]
) -> dict[str, Any]:
    async with session.post(path, json=body) as response:
        assert response.status in good, await response.text()
        return dict(await response.json())
