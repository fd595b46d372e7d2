"""uvicorn's HTTP protocol, but that a body is received in the memory where it is read.

By ASGI every byte of a body is copied four times, and every 64 kB of it wake the application.
"""

import asyncio
import time
from typing import Any

import httptools
import numpy as np
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# The ASGI extension that holds a request's Body.
BODY = "taglio.body"
# Heads, and what bodies send with them, are read in pages of so many bytes; an answer up to it is sent at once.
_PAGE_BYTES = 16384


class Http(asyncio.BufferedProtocol):
    """A connection: uvicorn's protocol reads heads, and bodies of no announced length; a Body reads itself. The
    connection ends where the next head takes longer than `patience_s`."""

    def __init__(self, patience_s: float, **options: Any) -> None:
        """`options` are those that uvicorn gives its protocols."""
        self._uvicorn = _Uvicorn(self, patience_s, **options)
        self._page = memoryview(bytearray(_PAGE_BYTES))
        self.body: Body | None = None

    def get_buffer(self, _: int) -> memoryview:
        """Where the next bytes go."""
        return self.body.room() if self.body else self._page

    def buffer_updated(self, nbytes: int) -> None:
        """Take the next bytes."""
        if self.body is None:
            self._uvicorn.data_received(self._page[:nbytes])  # type: ignore[arg-type]
            self._uvicorn.wait_for_reader()
        elif self.body.filled(nbytes):
            self.body = None
            self._uvicorn.behind_body()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._uvicorn.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._uvicorn.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hold answers back."""
        self._uvicorn.pause_writing()

    def resume_writing(self) -> None:
        """Go on with answers."""
        self._uvicorn.resume_writing()


class _Uvicorn(HttpToolsProtocol):
    def __init__(self, connection: Http, patience_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._connection, self._patience_s = connection, patience_s
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._corked = _Corked(transport, self.loop)
        super().connection_made(self._corked)  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_came()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()
        length = dict(self.headers).get(b"content-length")
        if length and not self.expect_100_continue and not self.parser.should_upgrade():
            self.scope["extensions"] = {BODY: Body(self._connection, self.cycle, int(length))}  # type: ignore[dict-item]

    def on_response_complete(self) -> None:
        self._corked.flush()
        super().on_response_complete()

    def _await_head(self) -> None:
        self._head_came()
        self._head = self.loop.call_later(self._patience_s, self.transport.close)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()

    def wait_for_reader(self) -> None:
        """Read no more of a body until there is memory for it."""
        offered = "extensions" in (self.scope or {})
        if offered and self.cycle.more_body and not self.cycle.response_complete:
            self.flow.pause_reading()

    def behind_body(self) -> None:
        """Continue behind a body that the parser has not seen."""
        self.parser = httptools.HttpRequestParser(self)
        self.on_message_complete()


class _Corked:
    """A transport that sends an answer in one packet, or what is written of it in one turn of the event loop: each
    packet wakes its receiver."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send soon; what is large at once, so that a client that does not read is noticed."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _PAGE_BYTES:
            self.flush()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        if self._parts:
            self._transport.writelines(self._parts)
            self._parts, self._size = [], 0


class Body:
    """The body of a request. `was_read`: all of it."""

    def __init__(self, connection: Http, cycle: RequestResponseCycle, size: int) -> None:
        self._connection, self._cycle = connection, cycle
        self._size, self._received, self._heard_s = size, 0, 0.0
        self._memory = memoryview(b"")
        self.was_read = False

    async def read(self, silence_s: float) -> memoryview:
        """All of it. Raises TimeoutError if nothing comes for `silence_s` seconds, ClientDisconnect."""
        cycle = self._cycle
        received, cycle.body = cycle.body, bytearray()
        if not cycle.more_body:
            self.was_read = True
            return memoryview(received)
        self._memory = np.empty(self._size, np.uint8).data
        self._received = len(received)
        self._memory[: self._received] = received
        self._connection.body = self
        cycle.flow.resume_reading()
        loop, self._heard_s = asyncio.get_running_loop(), time.monotonic()
        while cycle.more_body:
            if cycle.disconnected:
                raise ClientDisconnect
            left_s = self._heard_s + silence_s - time.monotonic()
            if left_s <= 0.0:
                raise TimeoutError(f"stopped after {self._received:,} bytes")
            cycle.message_event.clear()
            patience = loop.call_later(left_s, cycle.message_event.set)
            await cycle.message_event.wait()
            patience.cancel()
        self.was_read = True
        memory, self._memory = self._memory, memoryview(b"")  # freed with its last reader, not by the garbage collector
        return memory

    def room(self) -> memoryview:
        """The memory of what has not come yet."""
        return self._memory[self._received :]

    def filled(self, size: int) -> bool:
        """Count what came; whether it was the last."""
        self._received += size
        self._heard_s = time.monotonic()
        return self._received == self._size
