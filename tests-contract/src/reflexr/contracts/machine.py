"""A state machine of Hypothesis that does the same with a storage and with a model, and compares every answer.

What a storage promises that the model cannot know, such as what happens at once or is cancelled, is in other contracts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, override

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from reflexr.contracts import samples
from reflexr.contracts.calls import (
    ASKED,
    KEYS,
    LEASES,
    RULES,
    RUNS,
    Acquire,
    AddDeadLetter,
    Append,
    Call,
    ChangeStates,
    ClearStates,
    Release,
    SaveProgress,
    SaveRuns,
    SaveStored,
    Tick,
    entries,
    holders,
)
from reflexr.contracts.model import Model, Share
from reflexr.contracts.samples import ALPHA, BETA, START, scope_key
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import UNFINISHED, Run, RunStatus, ScopeState
from reflexr.workspace import (
    Deadline,
    LeaseKey,
    LogWindow,
    RunPolicy,
    RunQuery,
    StateChanges,
    Watch,
    WorkspaceRef,
    run_lease,
)

WORKSPACES: Final = (WorkspaceRef("t1", "w"), WorkspaceRef("t2", "w"))
ALL: Final = 1_000


class ModelContract(StorageGuarantees):
    """A storage answers as a naive model of it does.

    Attributes:
        examples: How many sequences of calls are tried, each on a storage of its own.
        steps: How many calls each of them has at most.
    """

    examples: ClassVar[int] = 40
    steps: ClassVar[int] = 25

    @pytest.mark.reflexr_contract
    def test_a_storage_answers_as_a_model_does(self) -> None:
        """Whatever is called in whatever order, every answer is that of a model of plain lists and dictionaries."""
        contract = self

        class Machine(StorageMachine):
            def __init__(self) -> None:
                super().__init__(contract)

        run_state_machine_as_test(Machine, settings=self.hypothesis())

    def hypothesis(self) -> settings:
        """Returns how Hypothesis tries sequences of calls: as the profile at hand, but for what is a storage's own."""
        return settings(
            max_examples=self.examples,
            stateful_step_count=self.steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )


# --- What Hypothesis draws

_minutes = st.integers(0, 12).map(lambda minutes: START + timedelta(minutes=minutes))
_ttls = st.integers(1, 8).map(lambda minutes: timedelta(minutes=minutes))
_names = st.frozensets(st.sampled_from(LEASES))
_holders = st.sampled_from(("first", "second"))
_rules = st.sampled_from(RULES)
_schedules = st.sampled_from(("daily", "hourly"))
_workspaces = st.sampled_from(WORKSPACES)
_limits = st.none() | st.integers(0, 4)
_states: st.SearchStrategy[ScopeState] = st.one_of(
    _minutes.map(samples.armed), st.builds(samples.marked, st.none() | _minutes)
)
_windows = st.builds(
    LogWindow,
    after_seq=st.integers(0, 6),
    before_seq=st.none() | st.integers(0, 9),
    types=st.none() | st.frozensets(st.sampled_from((ALPHA, BETA, "contract:none"))),
    limit=_limits,
) | st.builds(LogWindow, before_seq=st.none() | st.integers(0, 9), last=_limits)
_queries = st.builds(
    RunQuery,
    rules=st.none() | st.frozensets(_rules),
    scope_key=st.none() | st.sampled_from((scope_key("x"), scope_key("y"))),
    statuses=st.none()
    | st.sampled_from((UNFINISHED, *(frozenset({status}) for status in ("running", "paused", "dead_lettered")))),
    limit=_limits,
)


def _policy(
    unordered: frozenset[str], ordered: frozenset[str], blocking: frozenset[str], stored: bool, withheld: frozenset[str]
) -> RunPolicy:
    ordered -= unordered
    # A rule is either stored or the application's own, so a policy never names it twice.
    namespaces = frozenset({"contract"}) if stored and not unordered | ordered else frozenset[str]()
    return RunPolicy(unordered, ordered, ordered & blocking, namespaces, withheld)


def _watch(rules: frozenset[str], definition: str, stored: bool) -> Watch:
    namespaces = frozenset({"contract"}) if stored and not rules else frozenset[str]()
    return Watch(samples.definitions(*rules, definition=definition), namespaces)


def _state_changes(saved: dict[str, ScopeState], dropped: frozenset[str], expired: datetime | None) -> StateChanges:
    return StateChanges(saved, dropped - saved.keys(), expired)


_rule_sets = st.frozensets(_rules)
_policies = st.builds(
    _policy, _rule_sets, _rule_sets, _rule_sets, st.booleans(), st.just(frozenset[str]()) | _rule_sets
)
_shares = st.builds(
    Share,
    limit=st.integers(0, 4),
    each=st.none() | st.integers(1, 3),
    after=st.none() | _workspaces,
    but_runs=st.frozensets(st.builds(LeaseKey, _workspaces, st.sampled_from(RUNS).map(run_lease)), max_size=3),
    but_workspaces=st.frozensets(_workspaces, max_size=1),
)
_watches = st.builds(_watch, _rule_sets, st.sampled_from(("d1", "d2")), st.booleans())
_deadlines = st.dictionaries(
    _schedules, st.builds(Deadline, _minutes, st.none() | st.frozensets(_workspaces)), max_size=2
)


def _id(run: Run) -> str:
    return run.id


def _drawn_run(number: int, status: RunStatus, retry_at: datetime, until: datetime | None, blocks: bool) -> Run:
    # A run's rule, scope and place never change.
    return samples.run(
        RUNS[number],
        RULES[number % 2],
        status,
        scope="xxy"[number % 3],
        seq=number + 1,
        retry_at=retry_at if status == "retrying" else None,
        until=until,
        blocks=blocks,
    )


_runs = st.builds(
    _drawn_run,
    st.integers(0, len(RUNS) - 1),
    st.sampled_from(("pending", "running", "retrying", "paused", "succeeded", "dead_lettered", "cancelled")),
    _minutes,
    st.none() | _minutes,
    st.booleans(),
)
_run_changes = st.builds(SaveRuns, st.lists(_runs, min_size=1, max_size=3, unique_by=_id).map(tuple))
_appends = st.builds(Append, st.lists(st.sampled_from("abcdefgh"), max_size=3).map(tuple), _rules)
_calls: st.SearchStrategy[Call] = st.one_of(
    _appends,
    st.builds(
        SaveProgress, st.builds(samples.progress, _rules, st.integers(0, 6), definition=st.sampled_from(("d1", "d2")))
    ),
    st.builds(
        ChangeStates,
        _rules,
        st.builds(
            _state_changes,
            st.dictionaries(st.sampled_from(KEYS), _states, max_size=3),
            st.frozensets(st.sampled_from(KEYS)),
            st.none() | _minutes,
        ),
    ),
    st.builds(ClearStates, _rules),
    _run_changes,
    st.builds(AddDeadLetter, _rules, st.integers(1, 9)),
    st.builds(SaveStored, _rules, st.integers(1, 3), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.builds(Tick, _schedules, _minutes),
    st.builds(Acquire, _names, _holders, _ttls),
    st.builds(Release, _names, _holders),
)


_WINDOWS: Final = (
    LogWindow(),
    LogWindow(before_seq=3),
    LogWindow(after_seq=1, types=frozenset({ALPHA})),
    LogWindow(types=frozenset()),
    LogWindow(types=frozenset({BETA}), limit=2),
    LogWindow(types=frozenset({BETA}), last=2),
)
_QUERIES: Final = (
    RunQuery(),
    RunQuery(limit=2),
    RunQuery(rules=frozenset({ALPHA}), statuses=UNFINISHED),
    RunQuery(statuses=frozenset({"paused"})),
    RunQuery(statuses=frozenset()),
    RunQuery(scope_key=scope_key("x")),
)
_POLICIES: Final = (
    RunPolicy(unordered=frozenset(RULES)),
    RunPolicy(ordered=frozenset(RULES)),
    RunPolicy(ordered=frozenset(RULES), blocking=frozenset(RULES)),
    RunPolicy(stored=frozenset({"contract"})),
    RunPolicy(stored=frozenset({"contract"}), withheld=frozenset({ALPHA})),
)
_SHARES: Final = (Share(ALL), Share(2), Share(ALL, each=1, after=WORKSPACES[0]))
_WATCHES: Final = (
    Watch(samples.definitions(ALPHA)),
    Watch(samples.definitions(*RULES)),
    Watch({}, frozenset({"contract"})),
)
_DEADLINES: Final = tuple(
    {name: Deadline(START + timedelta(minutes=minutes), targets) for name in ("daily", "hourly")}
    for minutes in (3, 6, 9)
    for targets in (None, frozenset(WORKSPACES[:1]))
)


class StorageMachine(RuleBasedStateMachine):
    """Does the same with a storage and with a model, and compares every answer."""

    def __init__(self, contract: StorageGuarantees) -> None:
        super().__init__()
        self._model = Model()
        self._host = _Host(contract)
        self._trial = self._host.trial
        if self._trial.is_movable:
            self._model.now = self._trial.clock()
        else:
            self._model.now = datetime.now(UTC)

    @rule(workspace=_workspaces, calls=st.lists(_calls, min_size=1, max_size=4), is_kept=st.integers(0, 3).map(bool))
    def transaction(self, workspace: WorkspaceRef, calls: Sequence[Call], is_kept: bool) -> None:
        """A transaction of a few calls commits, or now and then rolls back."""
        model = self._model.copied(workspace)

        async def carry_out() -> None:
            opened = self._trial.transaction(workspace) if is_kept else self._trial.rolled_back(workspace)
            async with opened as transaction:
                assert transaction.head.seq == len(model.log)
                for call in calls:
                    imagined = call.imagine(model, self._model.now)
                    assert await call.call(transaction) == imagined, call
                    assert entries(await transaction.read(LogWindow())) == model.log

        self._host.run(carry_out)
        if is_kept:
            self._model.workspaces[workspace] = model

    @rule(workspace=_workspaces, changes=_run_changes)
    def go_on_with_runs(self, workspace: WorkspaceRef, changes: SaveRuns) -> None:
        """Runs come, and go on."""
        self.transaction(workspace, [changes], is_kept=True)

    @rule(workspace=_workspaces, append=_appends)
    def append_alone(self, workspace: WorkspaceRef, append: Append) -> None:
        """An append is all that happens."""
        model = self._model[workspace]
        imagined = append.imagine(model, self._model.now)
        assert self._host.run(lambda: append.call_alone(self._trial.storage, workspace)) == imagined

    @rule(minutes=st.integers(1, 5))
    def pass_time(self, minutes: int) -> None:
        """Time goes on, where it can be moved."""
        if self._trial.is_movable:
            self._model.now = self._trial.clock.advance(timedelta(minutes=minutes))

    @rule(
        workspace=_workspaces,
        what=st.sampled_from(("acquire", "renew", "release")),
        names=_names,
        holder=_holders,
        ttl=_ttls,
    )
    def lease(self, workspace: WorkspaceRef, what: str, names: frozenset[str], holder: str, ttl: timedelta) -> None:
        """Leases are taken, extended or given back outside a transaction."""
        storage, model, now = self._trial.storage, self._model[workspace], self._model.now
        keys = _keys(workspace, names)
        match what:
            case "acquire":
                got = self._host.run(lambda: storage.acquire(keys, holder, ttl))
                assert got == _keys(workspace, model.acquire(names, holder, ttl, now))
            case "renew":
                got = self._host.run(lambda: storage.renew(keys, holder, ttl))
                assert got == _keys(workspace, model.renew(names, holder, ttl, now))
            case _:
                self._host.run(lambda: storage.release(keys, holder))
                model.release(names, holder, now)

    @rule(workspace=_workspaces, name=st.sampled_from(("mirror", "other")), seq=st.integers(0, 9))
    def save_cursor(self, workspace: WorkspaceRef, name: str, seq: int) -> None:
        """A cursor is saved."""
        cursors = self._model[workspace].cursors
        cursors[name] = max(seq, cursors.get(name, 0))
        saved = self._host.run(lambda: self._trial.storage.save_cursor(workspace, name, seq))
        assert saved == cursors[name]

    @rule(window=_windows, query=_queries, policy=_policies, watch=_watches, deadlines=_deadlines)
    def look(
        self, window: LogWindow, query: RunQuery, policy: RunPolicy, watch: Watch, deadlines: dict[str, Deadline]
    ) -> None:
        """Everything that can be asked is asked."""
        self._host.run(lambda: self._look_at_workspaces([window], [query]))
        self._host.run(lambda: self._look_for_work([policy], [watch], [deadlines]))

    @rule(policy=_policies, share=_shares)
    def look_for_runs(self, policy: RunPolicy, share: Share) -> None:
        """Some of the runs that may start are asked for."""
        self._host.run(lambda: self._look_for_runs(policy, [share]))

    @override
    def teardown(self) -> None:
        """Looks once more, at more, and closes the storage."""
        try:
            self._host.run(lambda: self._look_at_workspaces(_WINDOWS, _QUERIES))
            self._host.run(lambda: self._look_for_work(_POLICIES, _WATCHES, _DEADLINES))
        finally:
            self._host.close()

    async def _look_at_workspaces(self, windows: Sequence[LogWindow], queries: Sequence[RunQuery]) -> None:
        storage = self._trial.storage
        assert await storage.workspaces() == self._model.logs()
        for workspace in WORKSPACES:
            model = self._model[workspace]
            for window in windows:
                assert entries(await storage.read(workspace, window)) == model.read(window), window
            for query in queries:
                assert await storage.runs(workspace, query) == model.find_runs(query), query
            assert await self._kept(workspace) == {
                "progress": list(model.progress.items()),
                "states": {name: model.find_states(name, ASKED[0]) for name in RULES},
                "dead letters": model.dead_letters,
                "stored rules": list(model.stored.items()),
                "ticks": list(model.ticks.items()),
                "leases": holders(model, self._model.now),
                "cursors": [model.cursors.get(name, 0) for name in ("mirror", "other")],
            }

    async def _kept(self, workspace: WorkspaceRef) -> dict[str, object]:
        storage = self._trial.storage
        async with storage.transaction(workspace) as transaction:
            states = await transaction.states(dict.fromkeys(RULES, ASKED[0]))
            leases = await transaction.holders(LEASES)
        return {
            "progress": list((await storage.progress(workspace)).items()),
            "states": states,
            "dead letters": await storage.dead_letters(workspace),
            "stored rules": list((await storage.stored_rules(workspace, RULES)).items()),
            "ticks": list((await storage.schedule_ticks(workspace)).items()),
            "leases": leases,
            "cursors": [await storage.cursor(workspace, name) for name in ("mirror", "other")],
        }

    async def _look_for_work(
        self, policies: Sequence[RunPolicy], watches: Sequence[Watch], schedules: Sequence[dict[str, Deadline]]
    ) -> None:
        storage = self._trial.storage
        for policy in policies:
            await self._look_for_runs(policy, _SHARES)
        for watch in watches:
            behind = self._model.behind(watch)
            _is_some_of(await storage.behind(watch, limit=1), behind, 1)
            _is_some_of(await storage.behind(watch, limit=ALL), behind, ALL)
        for deadlines in schedules:
            due = self._model.due_schedules(deadlines)
            _is_some_of(await storage.due_schedules(deadlines, limit=2), due, 2)
            _is_some_of(await storage.due_schedules(deadlines, limit=ALL), due, ALL)

    async def _look_for_runs(self, policy: RunPolicy, shares: Sequence[Share]) -> None:
        storage, now = self._trial.storage, self._model.now
        waiting = self._model.due(policy)
        due = {run for run, starts in waiting.items() if starts <= now}
        for share in shares:
            found = await storage.due_runs(policy, **vars(share))
            # Of runs that have waited equally long, which come first is the storage's affair.
            assert set(found) <= {run for run in due if share.admits(run)}, share
            assert len(found) == len(set(found))
            assert [run.workspace for run in found] == self._model.turns(due, share), share
        if policy.withheld and policy.stored:
            # What is withheld may be waited for all the same.
            return
        wait, first = await storage.next_due(policy), min(waiting.values(), default=None)
        expected = None if first is None else max(first - now, timedelta())
        # A clock that cannot be moved goes on by itself, so that less is left to wait.
        less = wait is not None and expected is not None and timedelta() < wait <= expected
        assert wait == expected or (less and not self._trial.is_movable), policy


class _Host:
    """Keeps a trial open in a task of its own, as its factory may have to be left where it was entered."""

    def __init__(self, contract: StorageGuarantees) -> None:
        self._contract = contract
        self._runner = asyncio.Runner(loop_factory=contract.event_loop)
        self._closing = asyncio.Event()
        loop = self._runner.get_loop()
        opened: asyncio.Future[StorageTrial] = loop.create_future()
        self._task = loop.create_task(self._serve(opened))
        try:
            self.trial = self.run(lambda: self._first(opened))
        except BaseException:
            self._runner.close()
            raise

    def run[T](self, call: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(self._contract.patience.total_seconds()):
                return await call()

        return self._runner.run(bounded())

    def close(self) -> None:
        self._closing.set()
        try:
            self.run(lambda: self._task)
        finally:
            self._runner.close()

    async def _serve(self, opened: asyncio.Future[StorageTrial]) -> None:
        async with self._contract.trial() as trial:
            opened.set_result(trial)
            await self._closing.wait()

    async def _first(self, opened: asyncio.Future[StorageTrial]) -> StorageTrial:
        await asyncio.wait([opened, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            # What kept the factory from opening anything.
            await self._task
        return await opened


def _is_some_of[Item](found: Sequence[Item], expected: set[Item], limit: int) -> None:
    """Checks that what was found is all that was to be found, or as much of it as there was room for, each once."""
    assert set(found) <= expected
    assert len(found) == len(set(found)) == min(limit, len(expected))


def _keys(workspace: WorkspaceRef, names: frozenset[str]) -> frozenset[LeaseKey]:
    return frozenset(LeaseKey(workspace, name) for name in names)
