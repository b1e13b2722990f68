"""Service annotations are validated at admission by the webhook of the daemon."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ccm.app.http import PAIR_NAMES, WEBHOOK_PREFIX
from ccm.sandbox import process
from providers.sim import balancers
from tests import servers
from tests.kubectl.tool import Kubectl
from tests.manifests import shipped
from tests.scenario.harness import Daemon, Environment, wait_for

MANIFEST = shipped.MANIFESTS / "webhook.yaml"
PREFIX = balancers.PREFIX
SIZE, INTERNAL = balancers.SIZE.name, balancers.INTERNAL.name


class Person:
    """A user with kubectl."""

    def __init__(self, env: Environment) -> None:
        program = servers.require_assets() / "kubectl"
        self._kubectl = Kubectl(program, env.server.kubeconfig_path, env.folder / "home")

    async def does(self, *words: str, stdin: Any = None) -> tuple[int, str]:
        """Exit status and output of one command."""
        return await asyncio.to_thread(self._kubectl.run, *words, stdin=stdin)

    async def succeeds(self, *words: str, stdin: Any = None) -> None:
        """Run a command that must succeed."""
        status, said = await self.does(*words, stdin=stdin)
        assert status == 0, said

    async def fails(self, *words: str, stdin: Any = None) -> str:
        """Return the error of a command that must fail."""
        status, said = await self.does(*words, stdin=stdin)
        assert status != 0
        return said

    async def writes(self, name: str, **annotations: str) -> tuple[int, str]:
        """Create a Service; the names of annotations go without their prefix."""
        return await self.does("create", "-f", "-", stdin=service(name, **annotations))


def service(name: str, **annotations: str) -> dict[str, Any]:
    found = {PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "annotations": found},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    }


def serving_flags(env: Environment, port: int, webhooks: str = "*") -> dict[str, str]:
    """Return the flags of a daemon that serves webhooks."""
    return {
        "feature-gates": "CloudControllerManagerWebhook=true",
        "webhooks": webhooks,
        "webhook-bind-address": "127.0.0.1",
        "webhook-secure-port": str(port),
        "webhook-cert-dir": str(env.folder / "certs"),
    }


async def start(env: Environment, port: int) -> Daemon:
    daemon = await env.start_leading(flags=serving_flags(env, port))
    await daemon.says("serving webhooks")
    return daemon


@asynccontextmanager
async def registered(
    env: Environment, person: Person, port: int, manifest: Path = MANIFEST
) -> AsyncIterator[None]:
    """The shipped configuration, with another address of the webhook."""
    [found] = [
        one for one in shipped.objects(manifest) if one["kind"].endswith("WebhookConfiguration")
    ]
    authority = (env.folder / "certs" / f"{PAIR_NAMES[WEBHOOK_PREFIX]}.crt").read_bytes()
    for one in found["webhooks"]:
        one["clientConfig"] = {
            "url": f"https://127.0.0.1:{port}{one['clientConfig']['service']['path']}",
            "caBundle": base64.b64encode(authority).decode(),
        }
    kind = f"{found['kind'].lower()}s"
    status, said = await person.does("create", "-f", "-", stdin=found)
    try:
        assert status == 0, said
        yield
    finally:
        await person.does("delete", kind, found["metadata"]["name"], "--ignore-not-found")


@pytest.mark.row("webhook-annotations-06")
@pytest.mark.timeout(180)
@servers.only_real
async def test_invalid_annotations_are_refused_only_while_the_daemon_runs(env: Environment) -> None:
    person, port = Person(env), process.pick_port()
    assert (await person.writes("old", size="huge"))[0] == 0
    daemon = await start(env, port)

    async with registered(env, person, port):

        async def refused() -> str:
            """Return kubectl's error about an invalid Service; empty if it is accepted."""
            status, said = await person.does(
                *("create", "--dry-run=server", "-f", "-"),
                stdin=service("web", size="huge", internal="maybe"),
            )
            return said if status else ""

        said = await wait_for(refused, "a wrong Service is refused")
        assert "denied the request" in said
        assert f"annotation {SIZE}: 'huge' is invalid; expected small or large" in said
        assert f"annotation {INTERNAL}: 'maybe' is invalid; expected true or false" in said

        status, said = await person.writes("good", size="large", sise="large")
        assert status == 0
        assert f"Warning: annotation {PREFIX}sise is unknown" in said
        assert f"did you mean {SIZE}?" in said

        # An old invalid value: other changes and deletion are allowed, a new invalid value is not.
        status, said = await person.does("label", "service", "old", "a=b")
        assert status == 0, said
        status, said = await person.does(
            "annotate", "--overwrite", "service", "old", f"{SIZE}=giant"
        )
        assert status != 0
        assert "'giant' is invalid" in said
        status, said = await person.does("delete", "service", "old", "good", "--timeout=30s")
        assert status == 0, said

        await daemon.kill()
        status, said = await person.writes("after", size="huge")
        assert status == 0, said
