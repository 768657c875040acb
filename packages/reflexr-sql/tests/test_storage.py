"""What `SqlStorage` has to see to by itself: long names, pages, and more than one statement can take."""

from collections.abc import AsyncGenerator

import pytest

from reflexr.sql import SqlStorage
from reflexr.workspace import RunPolicy, RunScope, WorkspaceRef

from .servers import Kind, engine_of
from .shop import REF, append, draft, run


@pytest.fixture(params=["sqlite", "postgresql"])
async def storage(request: pytest.FixtureRequest) -> AsyncGenerator[SqlStorage]:
    kind: Kind = request.param
    async with engine_of(kind) as engine, SqlStorage(engine, listen=False) as storage:
        yield storage


async def test_long_names_are_told_apart_and_come_back_whole(storage: SqlStorage) -> None:
    # Of four bytes a character, and of none that compression makes shorter.
    filler = "".join(chr(0x1F300 + (number * 37) % 251) for number in range(253))
    rule, scopes = "sqlshop:restock", [f'["{filler}{letter}"]' for letter in "ab"]
    async with storage.transaction(REF) as transaction:
        await transaction.append([draft(f"{filler}{letter}") for letter in "ab"])
        await transaction.save_runs([run(f"{filler}{scope[-3]}", rule, scope) for scope in scopes])
        first = await transaction.first_runs([RunScope(rule, scope) for scope in scopes])
    assert [run_id[-1] for run_id in first.values()] == ["a", "b"]
    assert list(first) == [RunScope(rule, scope) for scope in scopes]
    assert set(await storage.find(REF, [f"{filler}a"])) == {f"{filler}a"}
    due = await storage.due_runs(RunPolicy(ordered=frozenset({rule})), limit=10)
    assert {one.run_id for one in due} == set(first.values())


async def test_the_longest_names_of_a_workspace_fit_into_an_index(storage: SqlStorage) -> None:
    filler = "".join(chr(0x1F300 + (number * 37) % 251) for number in range(255))
    workspace = WorkspaceRef(filler, filler[::-1])
    assert await append(storage, draft(filler), workspace=workspace) == [1]
    assert await storage.workspaces() == [workspace]


async def test_a_page_of_a_tenants_workspaces_begins_after_any_workspace(storage: SqlStorage) -> None:
    refs = [WorkspaceRef(tenant, workspace) for tenant in ("a", "b") for workspace in ("1", "2")]
    for ref in refs:
        await append(storage, draft("e1"), workspace=ref)
    assert await storage.workspaces(tenant_id="b", after=refs[0]) == refs[2:]
    assert await storage.workspaces(tenant_id="b", after=refs[2]) == refs[3:]
    assert await storage.workspaces(tenant_id="a", after=refs[2]) == []


async def test_a_policy_may_name_more_rules_than_one_statement_takes(storage: SqlStorage) -> None:
    rules = [f"sqlshop:rule-{number:03}" for number in range(300)]
    async with storage.transaction(REF) as transaction:
        await transaction.save_runs([run(f"r-{rule}", rule) for rule in rules])
    policy = RunPolicy(ordered=frozenset(rules), blocking=frozenset(rules), stored=frozenset({"chat"}))
    assert len(await storage.due_runs(policy, limit=1_000)) == 300
    assert len(await storage.due_runs(policy, limit=7)) == 7
    due = await storage.next_due(policy)
    assert due is not None
    assert not due
