"""A little HTTP proxy: each host that it is asked for is one server of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ccm.base.tasks import NamedTaskGroup


@dataclass(kw_only=True)
class ForwardProxy:
    """What came by; with `refusal` each request is answered with this status line instead."""

    port: int = 0
    target: int
    refusal: str = ""
    heads: list[str] = field(default_factory=list)

    @property
    def asked(self) -> list[str]:
        """Method and target of each request."""
        return [" ".join(head.split()[:2]) for head in self.heads]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            if self.refusal:
                writer.write(f"HTTP/1.1 {self.refusal}\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
                return
            server, sink = await asyncio.open_connection("127.0.0.1", self.target)
            method, url, _ = head.split(" ", 2)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                parts = urlsplit(url)
                path = url.removeprefix(f"{parts.scheme}://{parts.netloc}")
                # The next request on the connection would not be looked at.
                plain = head.replace(url, path, 1).removesuffix("\r\n")
                sink.write(f"{plain}Connection: close\r\n\r\n".encode())
            async with NamedTaskGroup() as group:
                group.start(_pump(reader, sink), name="proxy-up")
                group.start(_pump(server, writer), name="proxy-down")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def serving(target: int) -> AsyncIterator[ForwardProxy]:
    """A proxy before the server on this port."""
    proxy = ForwardProxy(target=target)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    async with server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy
