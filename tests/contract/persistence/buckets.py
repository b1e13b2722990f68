"""Buckets of moto's server."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec
import pytest

from ccm.persistence.engine import StoreProvider
from ccm.persistence.interface import CAS, FENCING, GVK, SHARED, ObjectKey
from ccm.persistence.objects import StoragePlace, encode
from ccm.persistence.registry import BackendContext
from ccm.persistence.s3 import S3Config, S3Store, storage
from ccm.persistence.store import Store
from ccm.testing.persistence_harness import HERE, StoreHarness
from tests.contract.persistence.stores import MANY, PAGE, flipped
from tests.waiting import DEADLINE_S

NUMBERS = itertools.count()


class S3Harness(StoreHarness):
    """Two buckets."""

    backend = "s3"
    shares = several = True
    capabilities = frozenset({CAS, FENCING, SHARED})
    many: ClassVar[int] = MANY

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__()
        self.url = url
        (folder / "id").write_text("some-access-key")
        (folder / "secret").write_text("some-secret-key")
        configs = [
            S3Config(
                bucket=f"bucket-{next(NUMBERS)}",
                endpoint=url,
                access_key_id_file=folder / "id",
                secret_access_key_file=folder / "secret",
                allow_insecure=True,
            )
            for _ in "ab"
        ]
        names: Sequence[str] = storage(configs, BackendContext()).instances()
        self.configs = dict(zip(names, configs, strict=True))
        for config in configs:
            request(f"{url}/{config.bucket}", "PUT")

    def stores(self) -> Mapping[str, Store]:
        return {name: S3Store(config) for name, config in self.configs.items()}

    async def exposed(self) -> Any:
        name, config = next(iter(self.configs.items()))
        return StoreProvider(
            "s3", {name: S3Store(msgspec.structs.replace(config, allow_insecure=False))}
        )

    def stored(self) -> bytes:
        """All that lies in the buckets, names first."""
        found = b""
        for config in self.configs.values():
            listed = request(f"{self.url}/{config.bucket}")
            found += listed
            for name in re.findall(rb"<Key>(.*?)</Key>", listed):
                found += request(f"{self.url}/{config.bucket}/{quote(name)}")
        return found

    async def damage(self, provider: Any, instance: str, kind: GVK, key: ObjectKey) -> None:
        config = self.configs[instance]
        path = f"{config.prefix}/{encode(HERE.cluster_uid)}/{StoragePlace(kind, key).path}"
        url = f"{self.url}/{config.bucket}/{path.replace('%', '%25')}"
        body = await asyncio.to_thread(request, url)
        await asyncio.to_thread(request, url, "PUT", flipped(body))


def request(url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"}
    asked = urllib.request.Request(url, data=body, method=method, headers=signed)
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
        found: bytes = answer.read()
    return found


@contextmanager
def running() -> Iterator[str]:
    """Its address. It lists as many objects at a time as our stores do here."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from moto.server import ThreadedMotoServer  # more than a second's work

    respond: Any = DomainDispatcherApplication.__call__
    lock = threading.Lock()

    def respond_alone(*args: Any) -> Any:
        # moto checks the condition of a write and writes in two steps, with a thread per request.
        with lock:
            return respond(*args)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(DomainDispatcherApplication, "__call__", respond_alone)
        patches.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(PAGE))
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()
