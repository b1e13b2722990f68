"""Registry of providers: entry points of the group `ccm.providers`.

A distribution registers a provider in its `pyproject.toml`:

```toml
[project.entry-points."ccm.providers"]
acme = "ccm_acme:open_cloud"
```

Listing the names imports nothing; only the selected provider is imported.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from ccm.base.flags import PROVIDERS
from ccm.cloud.annotations import ServiceAnnotation
from ccm.cloud.config import Context, Form
from ccm.cloud.errors import ProviderError as ProviderError  # noqa: PLC0414 - raised here
from ccm.cloud.interface import Cloud, check_fields

SDK_VERSION = "2.0"
"""Version of the provider interfaces; a new major version requires changes in providers."""

_UNDECLARED_VERSION = "1.0"
"""SDK version assumed for a provider without the `provider` decorator."""

_MIGRATION_STEPS = {
    1: "give every LoadBalancerRecord the status that get_load_balancer would return; raise "
    "NotFound from update_load_balancer where there is no load balancer; make the digest of a load "
    "balancer change with each node_port; set Cloud.has_cluster_id if the cloud's objects are "
    "labelled with the cluster, or else run with --allow-untagged-cloud; depend on the "
    "distribution kube-ccm, formerly ccm; in the contract suite declare Harness.opt_outs instead "
    "of overriding cases"
}
"""Major version of the SDK -> changes that its providers need to support the next major version."""

Opener = Callable[[Context], AbstractAsyncContextManager[Cloud]]


@dataclass(frozen=True, slots=True, kw_only=True)
class provider:  # noqa: N801 - a decorator
    """Decorator for an async generator function that yields one `Cloud`; the result is a provider.

    ```python
    @cloud.provider(sdk="2.0", config=Config)
    async def open_cloud(ctx):
        async with Acme(ctx.settings(Config)) as api:
            yield cloud.Cloud(name="acme", instances=AcmeInstances(api))
    ```

    `kube-ccm providers NAME` prints the attributes, except `machines`, without opening the
    provider.

    Attributes:
        sdk: the SDK version that the provider was written for. A provider without this decorator,
            a bare `asynccontextmanager`, counts as written for 1.0, which is rejected.
        config: Struct with the settings of the cloud config; see `ccm.cloud.settings`.
        form: file format of the cloud config.
        offers: names of the `Cloud` fields that the provider sets; None = not declared.
        service_annotations: as in `Cloud`.
        service_annotation_schema: as in `Cloud`.
        machines: opener of a `Cloud` for the machine driver only, without a cloud config, because
            each request to the driver carries credentials. None = the provider itself is opened.

    Raises:
        ProviderError: the decorated function returns a `Cloud` instead of yielding it.
    """

    sdk: str
    config: type[msgspec.Struct] | None = None
    form: Form = "YAML"
    offers: Sequence[str] | None = None
    service_annotations: Sequence[str] | None = None
    service_annotation_schema: Sequence[ServiceAnnotation[Any]] = ()
    machines: Opener | None = None

    def __call__(self, function: Callable[[Context], AsyncIterator[Cloud]]) -> Opener:
        """Convert the function to an opener, an async context manager with this declaration."""
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise _not_a_generator(function)

        # A plain function may return another function's async generator: check the result.
        @wraps(function)
        def clouds(context: Context) -> AsyncIterator[Cloud]:
            result = function(context)
            if not isinstance(result, AsyncIterator):
                raise _not_a_generator(function)
            return result

        opener = asynccontextmanager(clouds)
        opener.declared = self  # type: ignore[attr-defined]
        return opener


def _not_a_generator(function: Callable[..., object]) -> ProviderError:
    name = getattr(function, "__qualname__", repr(function))
    return ProviderError(
        f"{name} is not an async generator function; use `async def`, and `yield` one Cloud "
        "instead of returning it"
    )


def declaration_of(opener: Opener) -> provider:
    """Return the declaration of a provider; without one, a declaration for SDK 1.0."""
    declaration: provider = getattr(opener, "declared", provider(sdk=_UNDECLARED_VERSION))
    return declaration


def installed_providers() -> Mapping[str, EntryPoint]:
    """Return the installed providers by name, without importing them.

    Raises:
        ProviderError: two distributions register the same name.
    """
    providers: dict[str, EntryPoint] = {}
    for entry in entry_points(group=PROVIDERS):
        other = providers.get(entry.name)
        if other is not None and _distribution(other) != _distribution(entry):
            raise ProviderError(
                f"cloud provider {entry.name!r} is registered twice, by {_distribution(other)} and "
                f"by {_distribution(entry)}; uninstall one of them"
            )
        providers[entry.name] = entry
    return providers


def load_provider(name: str) -> Opener:
    """Import the provider of that name.

    Raises:
        ProviderError: the name is unknown or registered twice, the import failed, the provider was
            written for an incompatible SDK version, returns instead of yielding, or declares an
            unknown capability.
    """
    providers = installed_providers()
    entry = providers.get(name)
    if entry is None:
        raise ProviderError(_unknown_message(name, providers))
    try:
        opener = entry.load()
    except ProviderError as error:
        raise ProviderError(
            f"cloud provider {name!r} of {_distribution(entry)}: {error}"
        ) from error
    except Exception as error:
        raise ProviderError(
            f"cloud provider {name!r} of {_distribution(entry)} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(opener):
        raise ProviderError(f"cloud provider {name!r}: {entry.value} is not callable")
    if inspect.isasyncgenfunction(opener) or inspect.iscoroutinefunction(opener):
        raise ProviderError(
            f"cloud provider {name!r}: {entry.value} is not an async context manager; it must "
            f'yield one Cloud and be decorated with @cloud.provider(sdk="{SDK_VERSION}")'
        )
    result: Opener = opener
    _check_sdk(name, entry, str(declaration_of(result).sdk))
    offers = declaration_of(result).offers or ()
    check_fields(offers, where=f"cloud provider {name!r} of {_distribution(entry)}: offers")
    return result


def _check_sdk(name: str, entry: EntryPoint, version: str) -> None:
    try:
        major, minor = (int(part) for part in version.split("."))
    except ValueError:
        raise ProviderError(
            f"cloud provider {name!r} of {_distribution(entry)} declares SDK version {version!r}; "
            f"it must look like {SDK_VERSION!r}"
        ) from None
    our_major, our_minor = (int(part) for part in SDK_VERSION.split("."))
    if 0 < major < our_major:
        steps = "; ".join(_MIGRATION_STEPS[number] for number in range(major, our_major))
        raise ProviderError(
            f"cloud provider {name!r} of {_distribution(entry)} was written for SDK {version}, "
            f"the daemon has {SDK_VERSION}. Required changes: {steps}; then decorate {entry.value} "
            f'with @cloud.provider(sdk="{SDK_VERSION}")'
        )
    if major != our_major or minor > our_minor:
        raise ProviderError(
            f"cloud provider {name!r} of {_distribution(entry)} needs SDK {version}, the daemon "
            f"has {SDK_VERSION}; install compatible versions of the provider and of kube-ccm"
        )


def _unknown_message(name: str, providers: Mapping[str, EntryPoint]) -> str:
    close = difflib.get_close_matches(name, providers, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if name == "external":
        hint = "; `external` is a value for kubelets, the daemon needs the name of a provider."
    known = ", ".join(sorted(providers)) or "none"
    return (
        f"unknown cloud provider {name!r}{hint or '.'} Installed providers: {known}. "
        "To use another one, install its Python package in the environment or image of the daemon"
    )


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
