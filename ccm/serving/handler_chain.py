"""The way of a request: who asks, whether they may, and then the page.

Every answer says that it must not be cached. Refusals are Status objects as the API server
gives them. Paths are exact, except those that end with a slash, which cover all below.
Counterpart: k8s.io/apiserver, the filters of a controller manager's server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from ccm.serving.accesslog import AccessLog
from ccm.serving.authentication import Authenticator, ReviewFailed, Unauthorized
from ccm.serving.authorization import Authorizer, Question
from ccm.serving.http import JSON, Handler, Request, Response, find_page, text
from ccm.serving.identity import ANONYMOUS, User

_NEVER_CACHE = ("Cache-Control", "no-cache, private")


class HandlerChain:
    """Answers requests.

    Args:
        pages: path -> who answers; a path with a slash at the end covers those below it.
        authenticator: who asks.
        authorizer: whether they may.
    """

    def __init__(
        self,
        pages: Mapping[str, Handler],
        *,
        authenticator: Authenticator,
        authorizer: Authorizer,
    ) -> None:
        self._pages = dict(pages)
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._access = AccessLog()

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        answer = await self._answer(request)
        return replace(answer, headers=(*answer.headers, _NEVER_CACHE))

    async def close(self) -> None:
        """Ask nobody about callers any more."""
        await self._authenticator.close()
        await self._authorizer.close()

    async def _answer(self, request: Request) -> Response:
        try:
            user = await self._authenticator.identify(request)
        except Unauthorized as error:
            self._access.unauthorized(request, error)
            return status(401, "Unauthorized", "Unauthorized")
        request = replace(request, user=user.name)
        question = Question(user=user, verb=request.method.lower(), path=request.path)
        try:
            decision = await self._authorizer.decide(question)
        except ReviewFailed as error:
            self._access.unanswered(request, error)
            return text(f'Internal Server Error: "{request.path}": {error}\n', 500)
        if not decision.allowed:
            self._access.forbidden(request)
            return status(403, "Forbidden", forbidden(user, question, decision.reason))
        if user != ANONYMOUS:
            request.known()
        self._access.allowed(request)
        page = find_page(self._pages, request.path)
        return text("404 page not found\n", 404) if page is None else await page(request)


def forbidden(user: User, question: Question, reason: str) -> str:
    """What a caller is told that may not."""
    said = f'forbidden: User "{user.name}" cannot {question.verb} path "{question.path}"'
    return f"{said}: {reason}" if reason else said


def status(code: int, reason: str, message: str) -> Response:
    """A failure as the API server tells it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": {}} if code == 403 else {}),
        "code": code,
    }
    return Response(
        status=code,
        body=json.dumps(body).encode() + b"\n",
        content_type=JSON,
        headers=(("X-Content-Type-Options", "nosniff"),) if code == 403 else (),
    )
