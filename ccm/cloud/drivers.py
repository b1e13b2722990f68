"""Machine drivers by the names of their providers: opened without a cloud config, several at once.

Credentials of machines come with each request, so a driver needs no cloud config. A provider whose
other parts need one names an opener for its machines (`provider.machines`); one that reads none,
or has defaults for all it reads, is opened as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from ccm.cloud import registry
from ccm.cloud.config import Context
from ccm.cloud.fields import ConfigError
from ccm.cloud.interface import Cloud


@asynccontextmanager
async def open_drivers(
    names: Iterable[str], context: Context | None = None
) -> AsyncIterator[Mapping[str, Cloud]]:
    """The clouds with these providers' drivers, by name, closed with the context.

    Args:
        names: of providers.
        context: what they are opened with; it holds no cloud config.

    Raises:
        ProviderError: there is no such provider, or it has no machines, or none that can be
            opened so.
    """
    given = context or Context()
    async with AsyncExitStack() as stack:
        found: dict[str, Cloud] = {}
        for name in dict.fromkeys(names):
            opener = registry.load(name)
            own = registry.declared(opener).machines or opener
            try:
                found[name] = await stack.enter_async_context(own(given))
            except ConfigError as error:
                raise registry.ProviderError(
                    f"cloud provider {name!r} cannot be opened for its machines alone, without a "
                    f"cloud config: {error}"
                ) from error
            if found[name].machines is None:
                raise registry.ProviderError(f"cloud provider {name!r} has no machines")
        yield found
