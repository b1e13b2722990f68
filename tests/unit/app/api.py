"""Fake API server for reviews of callers, ConfigMaps and health."""

from __future__ import annotations

import json
from typing import Any


class Api:
    """Client that returns scripted answers, the last one repeatedly, and records requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, str, Any]] = []

    def now(self, *answers: Any) -> None:
        """From now on give these."""
        self.answers = list(answers)

    async def raw(
        self, method: str, path: str, *, body: bytes | None = None, retry: bool = True
    ) -> bytes:
        self.sent.append((method, path, json.loads(body or b"null")))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()
