"""The daemon with a provider that is in a mood: `python -m tests.unit.app.moody MOOD [FLAG...]`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from ccm.app import main
from ccm.cloud import registry
from ccm.cloud.interface import Cloud


def provider(mood: str) -> registry.Opener:
    """Return the opener of a cloud that behaves according to the mood."""

    @contextlib.asynccontextmanager
    async def open_cloud(_: object) -> AsyncIterator[Cloud]:
        if mood == "never opens":
            sys.stderr.write('{"msg": "opening"}\n')
            await asyncio.Event().wait()
        if mood == "refuses":
            raise PermissionError("bad token")
        try:
            yield Cloud(name="paper", has_cluster_id=True)
        finally:
            if mood == "fails to close":
                raise OSError("the cloud is gone")
            if mood == "never closes":
                await asyncio.Event().wait()

    return open_cloud


if __name__ == "__main__":
    mood = sys.argv.pop(1)

    def load(name: str) -> registry.Opener:
        assert name == "paper"
        if mood == "is imported slowly":
            sys.stderr.write('{"msg": "importing"}\n')
            time.sleep(60)
        return provider(mood)

    registry.load_provider = load
    main.exit_process(main.main())
