"""A request that is repeated under its key is carried out once."""

import asyncio

import pytest

from .asking import INVALID, INVALID_STATE, NOT_FOUND, execute, keyed, refusal
from .ops import (
    EVENTS,
    client_of,
    error,
    serving,
    stored_rule,
)


async def test_a_request_that_is_repeated_under_its_key_publishes_nothing_twice() -> None:
    async with serving() as site:
        for key, events in (("one", [error()]), ("several", [error(), error()])):
            first = await keyed(site.client, key, *events)
            again = await keyed(site.client, key, *events)
            assert (again.status_code, again.json()) == (200, first.json())
        assert len((await site.client.get(EVENTS)).json()) == 3


async def test_a_request_that_is_made_twice_at_once_under_one_key_publishes_once() -> None:
    async with serving() as site:
        answers = await asyncio.gather(*[keyed(site.client, "k", error(), error()) for _ in range(20)])
        assert {answer.text for answer in answers} == {answers[0].text}
        assert len((await site.client.get(EVENTS)).json()) == 2


async def test_a_key_is_its_participants_own_and_its_workspaces() -> None:
    async with serving() as site, client_of(site.at, "ben") as ben:
        await keyed(site.client, "k", error())
        await keyed(ben, "k", error())
        elsewhere = EVENTS.replace("prod", "beside")
        await site.client.post(elsewhere, json={"event": error()}, headers={"idempotency-key": "k"})
        assert len((await site.client.get(EVENTS)).json()) == 2
        assert len((await site.client.get(elsewhere)).json()) == 1


async def test_a_key_is_the_id_of_a_command() -> None:
    async with serving() as site:
        first = await keyed(site.client, "c-1", error())
        repeated = await execute(site, "publish", event=error())
        assert [repeated.json()["outcome"]] == first.json()
        assert len((await site.client.get(EVENTS)).json()) == 1


async def test_the_key_of_a_command_that_published_nothing_is_refused() -> None:
    async with serving() as site:
        await execute(site, "install_rule", rule=stored_rule())
        answer = await keyed(site.client, "c-1", error())
        assert refusal(answer) == INVALID_STATE
        assert "rule_version" in answer.json()["detail"]["message"]


async def test_the_key_of_what_was_refused_is_refused_again() -> None:
    async with serving() as site:
        assert refusal(await keyed(site.client, "k", {"type": "ops:nothing"})) == NOT_FOUND
        assert refusal(await keyed(site.client, "k", error())) == NOT_FOUND


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_is_an_id(key: str) -> None:
    async with serving() as site:
        answer = await keyed(site.client, key, error())
        assert refusal(answer) == INVALID
        assert answer.json()["detail"]["errors"][0].startswith("idempotency-key: An id is")
