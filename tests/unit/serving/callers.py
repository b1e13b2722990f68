"""Requests, callers and reviewers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multidict import CIMultiDict, CIMultiDictProxy, MultiDict, MultiDictProxy

from ccm.serving.authentication import ReviewFailed, UserInfo
from ccm.serving.handler_chain import AccessAttributes, AccessDecision
from ccm.serving.http import Caller, Request


def request(
    path: str = "/",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    query: Sequence[tuple[str, str]] = (),
    caller: Caller | None = None,
    body: bytes = b"",
) -> Request:
    """Return a request as the server passes it to a handler."""

    async def read() -> bytes:
        return body

    return Request(
        method=method,
        path=path,
        query=MultiDictProxy(MultiDict(query)),
        headers=CIMultiDictProxy(CIMultiDict(headers)),
        caller=caller or Caller(),
        read=read,
    )


def certified(name: str, *chain: bytes, groups: Sequence[str] = ()) -> Caller:
    """Return a caller with a certificate signed by this chain of CAs."""
    subject = [(("organizationName", group),) for group in groups]
    if name:
        subject.append((("commonName", name),))
    return Caller(certificate={"subject": tuple(subject)}, chain=(b"leaf", *chain))


class Reviewer:
    """API server with these tokens and permissions; None: it does not respond."""

    def __init__(
        self,
        tokens: Mapping[str, UserInfo] | None = None,
        allowed: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        self.tokens = tokens
        self.allowed = allowed
        self.asked: list[object] = []

    async def review_token(self, token: str) -> UserInfo | None:
        self.asked.append(token)
        if self.tokens is None:
            raise ReviewFailed("no answer")
        return self.tokens.get(token)

    async def review_access(self, question: AccessAttributes) -> AccessDecision:
        self.asked.append(question)
        if self.allowed is None:
            raise ReviewFailed("no answer")
        found = (question.user.name, question.path) in self.allowed
        return AccessDecision(allowed=found, reason="" if found else "no such right")
