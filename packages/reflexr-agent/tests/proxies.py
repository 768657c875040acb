"""A proxy that speaks as OpenAI does, over a real socket, and says what it was asked."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Proxy:
    """Answers requests as a test wants it.

    Attributes:
        url: Where it is.
        headers: The headers of each request, their names in lower case.
        bodies: The JSON of each request.
        answers: What it answers: a status and a JSON object, or a text as the model's answer.
    """

    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answers: list[tuple[int, dict[str, Any]] | str] = field(default_factory=list[tuple[int, dict[str, Any]] | str])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        self.headers.append(headers)
        self.bodies.append(json.loads(await reader.readexactly(int(headers["content-length"]))))
        answer = self.answers.pop(0)
        status, value = (200, completion(answer)) if isinstance(answer, str) else answer
        text = json.dumps(value).encode()
        head = (f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(text)}")
        writer.write("\r\n".join((*head, "connection: close", "", "")).encode() + text)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def completion(text: str) -> dict[str, Any]:
    """What a model's answer is to OpenAI."""
    return {
        "id": "answer",
        "object": "chat.completion",
        "created": 1,
        "model": "mock",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


@asynccontextmanager
async def proxy(*answers: tuple[int, dict[str, Any]] | str) -> AsyncGenerator[Proxy]:
    """Serves so many answers on a port of its own."""
    served = Proxy(answers=list(answers))
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield served
