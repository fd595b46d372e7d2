"""Let a client that is still sending read the answer to it.

A server that closes a connection with unread bytes resets it, and the client may lose the answer (RFC 9112, 9.6).
"""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taglio.serve.http import BODY


def lingering(application: ASGIApp, limit_bytes: int, silence_s: float) -> ASGIApp:
    """`application`, which may answer before it has read the request: the rest is read and dropped before the
    connection is used again or closed, up to `limit_bytes`, and until nothing comes for `silence_s` seconds."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        unread, waits = True, b"expect" in headers  # such a client sends once it is told to
        body = scope.get("extensions", {}).get(BODY)

        def more() -> bool:
            return unread and not (body and body.was_read)

        async def received() -> Message:
            nonlocal unread, waits
            waits = False
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def drop() -> None:
            left = limit_bytes
            with suppress(TimeoutError):
                while more() and left > 0:
                    async with asyncio.timeout(silence_s):
                        left -= len((await received()).get("body", b""))

        async def sent(message: Message) -> None:
            if not more():
                pass
            elif message["type"] == "http.response.start" and (waits or not _ends(headers, limit_bytes)):
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            elif not waits and message["type"] == "http.response.body" and not message.get("more_body"):
                await send({**message, "more_body": True})
                await drop()
                message = {"type": "http.response.body"}
            await send(message)

        await application(scope, received, sent)

    return answer


def _ends(headers: dict[bytes, bytes], limit_bytes: int) -> bool:
    """Whether a request says that it has at most `limit_bytes`."""
    length = headers.get(b"content-length", b"" if b"transfer-encoding" in headers else b"0")
    return length.isdigit() and int(length) <= limit_bytes
