"""`InMemoryStorage` against the plainest model of what the port promises, in transactions that commit or do not."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args, override

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reflexr.core import Armed, Needs, Run, RunStatus, ScopeState, Waiting, overdue
from reflexr.workspace import (
    InMemoryStorage,
    LeaseKey,
    LogWindow,
    ManualClock,
    RunPolicy,
    RunQuery,
    RunScope,
    StateChanges,
    Transaction,
    run_lease,
)

from .plant import REF, SECOND, START, a_run, draft

RULES = ["plant:a", "plant:b"]
KEYS = ["k0", "k1", "k2", "k3"]
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus.__value__)
KINDS = ["plant:alarm", "plant:opened"]

seconds = st.integers(0, 6)
times = seconds.map(lambda number: START + number * SECOND)


def a_state(due: datetime | None, expires: datetime | None) -> ScopeState:
    return ScopeState(
        armed=None if due is None else Armed(seq=1, correlation_id="c", depth=0, due=due), expires=expires
    )


def numbered(number: int, key: str, status: RunStatus, at: datetime, waiting: Waiting) -> Run:
    return a_run(
        f"r{number}",
        rule=RULES[0],
        scope_key=key,
        seq=number,
        status=status,
        next_attempt_at=at if status == "retrying" else None,
        waiting=waiting if status == "paused" else None,
    )


states = st.builds(a_state, st.none() | times, st.none() | times)
runs = st.builds(
    numbered,
    st.integers(0, 7),
    st.sampled_from(KEYS[:2]),
    st.sampled_from(STATUSES),
    times,
    st.builds(Waiting, request=st.none(), since=times, until=st.none() | times, blocks=st.booleans()),
)


@dataclass
class Model:
    log: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    states: dict[tuple[str, str], ScopeState] = field(default_factory=dict[tuple[str, str], ScopeState])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    leases: dict[str, tuple[str, datetime]] = field(default_factory=dict[str, tuple[str, datetime]])

    def window(self, window: LogWindow) -> list[int]:
        seqs = [
            seq
            for seq, (_, kind) in enumerate(self.log, start=1)
            if seq > window.after_seq
            and (window.before_seq is None or seq < window.before_seq)
            and (window.types is None or kind in window.types)
        ]
        if window.limit is not None:
            return seqs[: window.limit]
        return seqs if window.last is None else seqs[len(seqs) - min(window.last, len(seqs)) :]

    def turn(self, scope: RunScope, *, blocking: bool) -> str | None:
        scoped = sorted(
            (run for run in self.runs.values() if (run.rule, run.scope_key) == (scope.rule, scope.scope_key)),
            key=lambda run: (run.position, run.id),
        )
        running = [run.id for run in scoped if run.status == "running"]
        waiting = ("pending", "retrying", "dead_lettered") if blocking else ("pending", "retrying")
        held = [run.id for run in scoped if run.status in waiting or (run.waiting is not None and run.waiting.blocks)]
        return next(iter(running + held), None)

    def due(self, policy: RunPolicy, now: datetime) -> set[str]:
        found: set[str] = set()
        for run in self.runs.values():
            scope = RunScope(run.rule, run.scope_key)
            ordered = self.turn(scope, blocking=run.rule in policy.blocking) == run.id and run.rule in policy.ordered
            lease = self.leases.get(run_lease(run.id))
            ready = (
                run.status == "pending"
                or (run.status == "retrying" and run.next_attempt_at is not None and run.next_attempt_at <= now)
                or (run.status == "running" and (lease is None or lease[1] <= now))
                or overdue(run, now)
            )
            ordered = ordered or (run.status == "paused" and run.rule in policy.ordered)
            if ready and (ordered or run.rule in policy.unordered):
                found.add(run.id)
        return found


type Step = Callable[[Transaction, Model], Awaitable[None]]


class StorageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock(START)
        self.storage = InMemoryStorage(clock=self.clock)
        self.model = Model()
        self.next_id = 0

    @initialize()
    def begin(self) -> None:
        assert self.run(self.storage.head(REF)).seq == 0

    def run[Result](self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @override
    def teardown(self) -> None:
        self.runner.close()

    @rule(data=st.data(), commits=st.booleans(), count=st.integers(1, 5))
    def transaction(self, data: st.DataObject, *, commits: bool, count: int) -> None:
        steps = [data.draw(st.sampled_from(["append", "states", "clear", "runs", "leases"])) for _ in range(count)]
        model = deepcopy(self.model)

        async def work() -> None:
            async with self.storage.transaction(REF) as transaction:
                for step in steps:
                    await getattr(self, f"_{step}")(transaction, model, data)
                    await self._agrees(transaction, model, data)
                if not commits:
                    raise InterruptedError

        try:
            self.run(work())
        except InterruptedError:
            return
        self.model = model

    @rule(number=seconds)
    def time_passes(self, number: int) -> None:
        self.clock.advance(number * SECOND / 3)

    @rule(run=runs, holder=st.sampled_from("ab"), number=seconds)
    def lease(self, run: Run, holder: str, number: int) -> None:
        name = run_lease(run.id)
        held = self.model.leases.get(name)
        free = held is None or held[1] <= self.clock() or held[0] == holder
        key = LeaseKey(REF, name)

        assert self.run(self.storage.acquire([key], holder, number * SECOND)) == ({key} if free else set())
        if free:
            self.model.leases[name] = (holder, self.clock() + number * SECOND)

    @invariant()
    def reads_agree(self) -> None:
        envelopes = self.run(self.storage.read(REF, LogWindow()))
        assert [(envelope.id, envelope.event_type) for envelope in envelopes] == self.model.log
        found = self.run(self.storage.runs(REF, RunQuery()))
        assert [run.id for run in found] == list(reversed(self.model.runs))
        assert {run.id: run for run in found} == self.model.runs

    @invariant()
    def work_is_found(self) -> None:
        rules = frozenset(RULES)
        for policy in (RunPolicy(ordered=rules), RunPolicy(ordered=rules, blocking=rules), RunPolicy(unordered=rules)):
            due = self.run(self.storage.due_runs(policy, limit=99))
            assert {run.run_id for run in due} == self.model.due(policy, self.clock())

    async def _append(self, transaction: Transaction, model: Model, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(KINDS))
        self.next_id += 1
        [envelope] = await transaction.append([draft(f"e{self.next_id}", kind=kind)])
        model.log.append((envelope.id, kind))
        assert envelope.seq == len(model.log)

    async def _states(self, transaction: Transaction, model: Model, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(RULES))
        saved = data.draw(st.dictionaries(st.sampled_from(KEYS), states))
        dropped = data.draw(st.frozensets(st.sampled_from(KEYS))) - saved.keys()
        clock = data.draw(st.none() | times)
        await transaction.change_states({name: StateChanges(saved, dropped, clock)})
        if clock is not None:
            for (rule_name, key), state in list(model.states.items()):
                if rule_name == name and state.expires is not None and state.expires <= clock:
                    del model.states[rule_name, key]
        for key in dropped:
            model.states.pop((name, key), None)
        model.states.update({(name, key): state for key, state in saved.items()})

    async def _clear(self, transaction: Transaction, model: Model, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(RULES))
        await transaction.clear_states([name])
        model.states = {place: state for place, state in model.states.items() if place[0] != name}

    async def _runs(self, transaction: Transaction, model: Model, data: st.DataObject) -> None:
        changed = data.draw(st.lists(runs, max_size=3, unique_by=lambda run: run.id))
        # A run's rule and scope are its own for good.
        changed = [
            run.model_copy(update={"scope_key": model.runs[run.id].scope_key}) if run.id in model.runs else run
            for run in changed
        ]
        await transaction.save_runs(changed)
        model.runs.update({run.id: run for run in changed})

    async def _leases(self, transaction: Transaction, model: Model, data: st.DataObject) -> None:
        holder, name = data.draw(st.sampled_from("ab")), run_lease(data.draw(runs).id)
        held = model.leases.get(name)
        live = held is not None and held[1] > transaction.now
        if data.draw(st.booleans()):
            got = await transaction.acquire([name], holder, SECOND)
            assert (name in got) == (not live or held is None or held[0] == holder)
            if got:
                model.leases[name] = (holder, transaction.now + SECOND)
        else:
            await transaction.release([name], holder)
            if live and held is not None and held[0] == holder:
                del model.leases[name]

    async def _agrees(self, transaction: Transaction, model: Model, data: st.DataObject) -> None:
        kinds = data.draw(st.none() | st.frozensets(st.sampled_from(KINDS)))
        window = LogWindow(
            data.draw(seconds), data.draw(st.none() | seconds), kinds, last=data.draw(st.none() | seconds)
        )
        assert [envelope.seq for envelope in await transaction.read(window)] == model.window(window)
        keys, through = data.draw(st.frozensets(st.sampled_from(KEYS))), data.draw(st.none() | times)
        for name in RULES:
            found = await transaction.states({name: Needs(keys, through, ())})
            assert found[name] == {
                key: state
                for (rule_name, key), state in model.states.items()
                if rule_name == name
                and (key in keys or (through is not None and state.due is not None and state.due <= through))
            }
        statuses = data.draw(st.none() | st.frozensets(st.sampled_from(STATUSES)))
        limit = data.draw(st.none() | st.integers(0, 4))
        expected = [run for run in reversed(model.runs.values()) if statuses is None or run.status in statuses]
        assert await transaction.find_runs(RunQuery(statuses=statuses, limit=limit)) == expected[:limit]
        for key in KEYS[:2]:
            scope = RunScope(RULES[0], key)
            for blocking in (False, True):
                turn = await transaction.first_runs([scope], blocking=RULES if blocking else [])
                assert turn.get(scope) == model.turn(scope, blocking=blocking)


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=25, stateful_step_count=15)
