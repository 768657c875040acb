"""What a transaction keeps back, and when it is written."""

from collections.abc import AsyncGenerator
from typing import override

import pytest
from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql

from reflexr.core import RuleProgress
from reflexr.sql import SqlStorage
from reflexr.sql.sessions import AsyncpgDriver, Session
from reflexr.sql.statements import TEXT, Parameters, Row, Statement, Statements, parameter
from reflexr.sql.tables import CURSORS, MEMBERS
from reflexr.sql.writing import Writing
from reflexr.workspace import EVALUATION_LEASE, DuplicateEventIdError

from .servers import engine_of
from .shop import HOUR, REF, append, draft, run


@pytest.fixture
async def storage() -> AsyncGenerator[SqlStorage]:
    async with engine_of("postgresql") as engine, SqlStorage(engine, listen=False) as storage:
        yield storage


async def test_what_is_read_next_sees_what_was_kept_back(storage: SqlStorage) -> None:
    async with storage.transaction(REF) as transaction:
        await transaction.save_progress([RuleProgress("sqlshop:a", 1, 0, "d")])
        await transaction.save_runs([run("r1", "sqlshop:a", "[1]")])
        await transaction.append([draft("e1")])

        assert set(await transaction.find(["e1"])) == {"e1"}
        assert set(await transaction.runs(["r1"])) == {"r1"}
    assert set(await storage.progress(REF)) == {"sqlshop:a"}


async def test_a_run_that_is_saved_twice_is_as_it_was_last(storage: SqlStorage) -> None:
    pending = run("r1", "sqlshop:a", "[1]")
    async with storage.transaction(REF) as transaction:
        await transaction.save_runs([pending])
        await transaction.save_runs([pending.model_copy(update={"status": "cancelled"})])

    found = await storage.run(REF, "r1")
    assert found is not None
    assert found.status == "cancelled"


async def test_an_id_that_is_in_the_log_leaves_all_but_the_events_to_be_written(storage: SqlStorage) -> None:
    await append(storage, draft("e1"))
    async with storage.transaction(REF) as transaction:
        await transaction.save_runs([run("r1", "sqlshop:a", "[1]")])
        with pytest.raises(DuplicateEventIdError) as refused:
            await transaction.append([draft("e1"), draft("e2")])
        assert transaction.head.seq == 1
        (appended,) = await transaction.append([draft("e2")])

    assert (refused.value.ids, appended.seq) == (("e1",), 2)
    assert [envelope.id for envelope in (await storage.find(REF, ["e1", "e2"])).values()].count("e2") == 1
    assert (await storage.head(REF)).seq == 2
    assert await storage.run(REF, "r1") is not None


async def test_who_evaluates_is_known_from_the_beginning_and_after_each_change(storage: SqlStorage) -> None:
    await append(storage, draft("e1"))
    async with storage.transaction(REF) as transaction:
        assert await transaction.holders([EVALUATION_LEASE]) == {}
        await transaction.acquire([EVALUATION_LEASE], "somebody", HOUR)
        assert await transaction.holders([EVALUATION_LEASE]) == {EVALUATION_LEASE: "somebody"}
    async with storage.transaction(REF) as transaction:
        assert await transaction.holders([EVALUATION_LEASE]) == {EVALUATION_LEASE: "somebody"}
        await transaction.release([EVALUATION_LEASE], "somebody")
        assert await transaction.holders([EVALUATION_LEASE]) == {}


class Told(AsyncpgDriver):
    """A driver that only takes note of what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @override
    async def fetch(self, statement: Statement, parameters: Parameters) -> list[Row]:
        self.texts.append(statement.text)
        return []


async def test_statements_on_one_table_are_told_one_after_another_and_others_together() -> None:
    statements = Statements(postgresql.dialect())
    member = statements(delete(MEMBERS).where(MEMBERS.c.digest == parameter("digest", TEXT)))
    cursor = statements(delete(CURSORS).where(CURSORS.c.name == parameter("name", TEXT)))
    told = Told()
    writing = Writing(Session(told), statements)

    await writing.write(member, {})
    await writing.write(cursor, {})
    await writing.write(cursor, {})
    await writing.flush()
    await writing.flush()

    tables = [[table.name for table in (MEMBERS, CURSORS) if f"FROM {table.name}" in text] for text in told.texts]
    assert tables == [[MEMBERS.name, CURSORS.name], [CURSORS.name]]
    await writing.write(member, {})
    await writing.fetch(statements(select(CURSORS.c.name)), {})
    assert [text.split()[0] for text in told.texts[2:]] == ["DELETE", "SELECT"]
