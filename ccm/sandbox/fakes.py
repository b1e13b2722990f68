"""A provider's own fake of its cloud as a process, so that a sandbox may be one of that cloud.

A provider that has a fake has a program beside it, `<its package>.testing`. With `--config FILE`
that writes a cloud config, with `--machine-class FILE` a MachineClass and its Secret; its other
arguments are names of instances that are there already. When it serves it prints one line of JSON:
`url` or `endpoint`, and in `environment` the variables that the daemon needs, if any.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ccm.cloud import registry
from ccm.cloud import settings as cloud_settings
from ccm.cloud.registry import Opener
from ccm.sandbox import cluster, machines
from ccm.sandbox.settings import Provider


def module_of(opener: Opener) -> str:
    """The program of a provider's fake; empty where there is none."""
    package = f"{getattr(opener, '__module__', '')}.testing"
    try:
        return package if importlib.util.find_spec(f"{package}.__main__") else ""
    except (ImportError, ValueError):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fake:
    """A running fake.

    Attributes:
        url: where it is.
        provider: with the cloud config and the MachineClass that it wrote.
        variables: of the environment, which who asks this cloud needs.
        environment: the daemon's.
        is_running: whether it lives.
        log: where it writes.
    """

    url: str
    provider: Provider
    variables: Mapping[str, str]
    environment: Mapping[str, str]
    is_running: Callable[[], bool]
    log: Path


@contextlib.asynccontextmanager
async def open_fake(folder: Path, provider: Provider, names: Sequence[str]) -> AsyncIterator[Fake]:
    """Start the fake of a provider, with instances of these names.

    Raises:
        StartError: it did not become ready.
    """
    cluster.make(folder)
    config, made_of = folder / "cloud.yaml", folder / "class.yaml"
    declared = registry.declared(registry.load(provider.name)).config
    argv = [provider.fake, "--config", str(config), "--machine-class", str(made_of), *names]
    async with cluster.open_child(argv, folder / "fake.log") as child:
        told = await cluster.until_ready(child)
        classes = provider.machine_class or machines.read(made_of.read_bytes())
        yield Fake(
            url=str(told.get("url") or told.get("endpoint")),
            provider=replace(provider, config=config, machine_class=classes),
            variables=(variables := told.get("environment", {})),
            environment={**_clean(provider.name, declared), **variables},
            is_running=lambda: child.exit_code is None,
            log=child.log,
        )


def _clean(name: str, config: type[msgspec.Struct] | None) -> Mapping[str, str]:
    """Our environment, but for what may be of somebody's real account: what begins with the
    provider's name, and what is a setting that it declares."""
    prefix = f"{name.upper().replace('-', '_')}_"
    declared = {one.name for one in cloud_settings.table(config)} if config else set()
    kept = [key for key in os.environ if not key.startswith(prefix) and key not in declared]
    return {key: os.environ[key] for key in kept}
