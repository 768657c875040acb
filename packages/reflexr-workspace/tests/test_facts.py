import pytest

from reflexr.core import derived_id
from reflexr.workspace import InMemoryStorage, ManualClock
from reflexr.workspace.facts import append_facts, next_id

from .plant import REF, START, append, draft


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage(clock=ManualClock(START))


async def test_a_fact_whose_id_is_taken_gets_the_next_one_that_is_free(storage: InMemoryStorage) -> None:
    await append(storage, "a", next_id("a"))

    async with storage.transaction(REF) as transaction:
        facts = await append_facts(transaction, [draft("a", chain="first"), draft("b", chain="first")])

    assert [fact.id for fact in facts] == [next_id(next_id("a")), "b"]
    assert [fact.correlation_id for fact in facts] == ["first", "first"]


async def test_a_fact_that_begins_a_chain_still_begins_one_under_another_id(storage: InMemoryStorage) -> None:
    await append(storage, "a")

    async with storage.transaction(REF) as transaction:
        [fact] = await append_facts(transaction, [draft("a")])

    assert fact.id == fact.correlation_id == next_id("a")


async def test_facts_carry_the_trace_context_unless_they_have_one_of_their_own(storage: InMemoryStorage) -> None:
    async with storage.transaction(REF) as transaction:
        facts = await append_facts(transaction, [draft("a"), draft("b")._replace(traceparent="own")], "given")

    assert [fact.traceparent for fact in facts] == ["given", "own"]


def test_the_next_id_is_the_same_in_every_process() -> None:
    assert next_id("a") == derived_id("evt", "again", "a") != next_id("b")
