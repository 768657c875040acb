"""A server of REST in this process: it answers with what it is given, and keeps what it was asked."""

import json
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx

from reflexr.client import Backoff, Client

type Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


def no_http() -> httpx.AsyncClient:
    """What carries requests of a client that makes none, and costs nothing to create."""
    return httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(404)))


class Waits:
    """A back-off whose waits are noted and take no time: the clock goes on by them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def backoff(self, *, attempts: int = 4, within: timedelta = timedelta(minutes=1), random: float = 1.0) -> Backoff:
        return Backoff(attempts=attempts, within=within, sleep=self.sleep, random=lambda: random, clock=self.clock)


class Answering:
    """Answers each request with the next answer; the last is given again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[httpx.Request] = []
        self.waits = Waits()
        self._answers = deque(answers)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    @property
    def request(self) -> httpx.Request:
        (request,) = self.requests
        return request

    def client(self, *, backoff: Backoff | None = None, **options: Any) -> Client:
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        return Client("https://rules.example/api", http=http, backoff=backoff or self.waits.backoff(), **options)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)


def answer(body: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body)


def result(outcome: dict[str, Any]) -> Callable[[httpx.Request], httpx.Response]:
    """What a command is answered with that was carried out."""

    def answered(request: httpx.Request) -> httpx.Response:
        command_id = json.loads(request.content)["command_id"]
        return answer({"type": "command_result", "command_id": command_id, "ok": True, "outcome": outcome})

    return answered


def published(seq: int = 1, id: str = "e-1", *, duplicate: bool = False) -> dict[str, Any]:
    return {"type": "published", "seq": seq, "id": id, "duplicate": duplicate}


def refused(kind: str, status: int, message: str = "no", **more: Any) -> httpx.Response:
    return answer({"detail": {"type": kind, "message": message, **more}}, status)
