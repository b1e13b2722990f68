"""An API server for those who ask it about callers, settings and its health."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


class Api:
    """Gives these answers, the last one again and again, and notes what it is asked."""

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


def write_kubeconfig(file: Path, server: str, token: str) -> None:
    """Say where the API server is, and with which token it is asked."""
    one = {"cluster": {"server": server}, "user": {"token": token}}
    named = {kind: [{"name": "x", **one}] for kind in ("clusters", "users")}
    contexts = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
    file.write_text(yaml.safe_dump({"current-context": "x", "contexts": contexts, **named}))
