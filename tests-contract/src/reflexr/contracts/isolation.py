"""What a storage promises of tenants and workspaces: none sees anything of another, however alike their names."""

from typing import Final

from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import (
    ALPHA,
    HOUR,
    WORKSPACE,
    at,
    dead_letter,
    draft,
    installed,
    marked,
    needs,
    progress,
    rule,
    run,
    run_scope,
    stored,
)
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.workspace import LogWindow, RunQuery, StateChanges, WorkspaceRef

type Pair = tuple[WorkspaceRef, WorkspaceRef]

_LONG: Final = "\U0001f44d" * 254


class IsolationContract(StorageGuarantees):
    """Two workspaces are one only if tenant and workspace are the same, character for character."""

    @guarantee()
    async def test_tenants_are_apart(self, trial: StorageTrial) -> None:
        """Two tenants' workspaces of one name have nothing to do with each other, in anything that is kept."""
        await self._are_apart(trial, WORKSPACE, WorkspaceRef("another-tenant", WORKSPACE.workspace_id))

    @guarantee()
    async def test_workspaces_are_apart(self, trial: StorageTrial) -> None:
        """Two workspaces of one tenant have nothing to do with each other, in anything that is kept."""
        await self._are_apart(trial, WORKSPACE, WorkspaceRef(WORKSPACE.tenant_id, "another-workspace"))

    @guarantee()
    async def test_case_tells_workspaces_apart(self, trial: StorageTrial) -> None:
        """Names that differ in case only are different, in any alphabet."""
        await self._tells(trial, (WorkspaceRef("t", "name"), WorkspaceRef("t", "Name")))
        await self._tells(trial, (WorkspaceRef("t", "\u00fc"), WorkspaceRef("t", "\u00dc")))
        await self._tells(trial, (WorkspaceRef("tenant", "w"), WorkspaceRef("TENANT", "w")))

    @guarantee()
    async def test_normalisation_tells_workspaces_apart(self, trial: StorageTrial) -> None:
        """Names that look the same but are different characters of Unicode are different."""
        await self._tells(trial, (WorkspaceRef("t", "caf\u00e9"), WorkspaceRef("t", "cafe\u0301")))
        await self._tells(trial, (WorkspaceRef("t", "\ufb01"), WorkspaceRef("t", "fi")))
        await self._tells(trial, (WorkspaceRef("\ufb01", "w"), WorkspaceRef("fi", "w")))

    @guarantee()
    async def test_spaces_tell_workspaces_apart(self, trial: StorageTrial) -> None:
        """Names that differ in spaces before or after them are different."""
        await self._tells(trial, (WorkspaceRef("t", "name"), WorkspaceRef("t", "name ")))
        await self._tells(trial, (WorkspaceRef("t", "after"), WorkspaceRef("t", " after")))
        await self._tells(trial, (WorkspaceRef("t ", "w"), WorkspaceRef("t", "w")))

    @guarantee()
    async def test_a_separator_in_a_name_joins_nothing(self, trial: StorageTrial) -> None:
        """A tenant and a workspace are two names, whatever is in them: `a/b` and `c` are not `a` and `b/c`."""
        for mark in ("/", ":", "|", ".", "\x1f", '","', "'"):
            await self._tells(trial, (WorkspaceRef(f"a{mark}b", "c"), WorkspaceRef("a", f"b{mark}c")))

    @guarantee()
    async def test_wildcards_in_a_name_are_characters(self, trial: StorageTrial) -> None:
        """`%`, `_`, `*` and `?` in a name stand for themselves."""
        for number, mark in enumerate(("%", "_", "*", "?", "\\", "$1")):
            name = f"{number}x"
            await self._tells(trial, (WorkspaceRef("t", f"{name}{mark}"), WorkspaceRef("t", f"{name}y")))
            await self._tells(trial, (WorkspaceRef(f"{name}{mark}", "w"), WorkspaceRef(f"{name}y", "w")))

    @guarantee()
    async def test_long_names_are_told_apart_by_their_last_character(self, trial: StorageTrial) -> None:
        """Names of 255 characters that differ in the last one are different."""
        await self._tells(trial, (WorkspaceRef("t", _LONG + "a"), WorkspaceRef("t", _LONG + "b")))
        await self._tells(trial, (WorkspaceRef(_LONG + "a", "w"), WorkspaceRef(_LONG + "b", "w")))

    async def _tells(self, trial: StorageTrial, pair: Pair) -> None:
        one, other = pair
        await trial.append(draft("e1"), workspace=one)
        assert (await trial.storage.head(other)).seq == 0
        async with trial.transaction(other) as transaction:
            assert transaction.head.seq == 0
            await transaction.append([draft("e1"), draft("e2")])
        assert await trial.ids(one) == ["e1"]
        assert await trial.ids(other) == ["e1", "e2"]
        assert {one, other} <= set(await trial.storage.workspaces())
        assert one in await trial.storage.workspaces(tenant_id=one.tenant_id)

    async def _are_apart(self, trial: StorageTrial, one: WorkspaceRef, other: WorkspaceRef) -> None:
        await _fill(trial, one)
        before = await _everything(trial, one)
        assert await _everything(trial, other) == await _everything(trial, WorkspaceRef("nobody's", "empty"))
        await _fill(trial, other)
        async with trial.transaction(other) as transaction:
            await transaction.append([draft("e2")])
            await transaction.clear_states([ALPHA])
            await transaction.save_progress([progress(ALPHA, 9)])
            await transaction.save_runs([run("r1", status="cancelled")])
            await transaction.save_stored_rules([stored(rule(ALPHA), 2, is_active=False)])
            await transaction.add_dead_letters([dead_letter(ALPHA, 2)])
            await transaction.save_schedule_ticks({"daily": at(9)})
            await transaction.release(["lease"], "holder")
        await trial.storage.save_cursor(other, "mirror", 9)
        assert await _everything(trial, one) == before


async def _fill(trial: StorageTrial, workspace: WorkspaceRef) -> None:
    async with trial.transaction(workspace) as transaction:
        await transaction.append([installed("e1", ALPHA, 1)])
        await transaction.save_progress([progress(ALPHA, 1)])
        await transaction.change_states({ALPHA: StateChanges(saved={"[1]": marked(at(1))})})
        await transaction.save_runs([run("r1")])
        await transaction.add_dead_letters([dead_letter(ALPHA, 1)])
        await transaction.save_stored_rules([stored(rule(ALPHA))])
        await transaction.save_schedule_ticks({"daily": at(1)})
        assert await transaction.acquire(["lease"], "holder", HOUR) == {"lease"}
    assert await trial.storage.save_cursor(workspace, "mirror", 1) == 1


async def _everything(trial: StorageTrial, workspace: WorkspaceRef) -> dict[str, object]:
    storage = trial.storage
    async with trial.transaction(workspace) as transaction:
        inside = (
            transaction.head,
            await transaction.read(LogWindow()),
            await transaction.find(["e1", "e2"]),
            await transaction.read_seqs([1, 2]),
            await transaction.progress(),
            await transaction.states({ALPHA: needs("[1]", through=at(9))}),
            await transaction.runs(["r1"]),
            await transaction.find_runs(RunQuery()),
            await transaction.first_runs([run_scope()]),
            await transaction.stored_rules(),
            await transaction.schedule_ticks(),
            await transaction.holders(["lease"]),
        )
    return {
        "inside a transaction": inside,
        "head": await storage.head(workspace),
        "log": await storage.read(workspace, LogWindow()),
        "found": await storage.find(workspace, ["e1", "e2"]),
        "history": await storage.rule_history(workspace, ALPHA),
        "stored rules": await storage.stored_rules(workspace, [ALPHA]),
        "progress": await storage.progress(workspace),
        "runs": await storage.runs(workspace, RunQuery()),
        "run": await storage.run(workspace, "r1"),
        "dead letters": await storage.dead_letters(workspace),
        "counts": await storage.dead_letter_counts(workspace),
        "ticks": await storage.schedule_ticks(workspace),
        "cursor": await storage.cursor(workspace, "mirror"),
    }
