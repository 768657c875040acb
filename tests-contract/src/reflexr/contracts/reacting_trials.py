"""What a guarantee of reacting is tried on: an application's events, and as many processes of it as a test wants.

A process is a reactor over a storage that a test can look into, hold up and cut off. All of them run in the one event
loop of the test, so what happens between two of their calls is the test's to say.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final, cast, override

from pydantic import JsonValue

from reflexr.contracts.samples import HOUR, WORKSPACE
from reflexr.contracts.trials import StorageGuarantees, StorageTrial
from reflexr.core import (
    Actor,
    Batch,
    Envelope,
    Event,
    EventRegistry,
    Feedback,
    RetryPolicy,
    Rule,
    RuleErrored,
    RuleFired,
    RuleProgress,
    Run,
    StoredRules,
    UserActor,
    by,
    evaluate,
    on,
    run,
)
from reflexr.workspace import (
    EVALUATION_LEASE,
    Action,
    ActionFunction,
    ManualClock,
    Pause,
    Reaction,
    Reactor,
    Storage,
    StorageError,
    Workspace,
    WorkspaceRef,
    run_lease,
)
from reflexr.workspace import Workspaces as Application

type Actions = Mapping[str, Action[None] | ActionFunction[None]]

TTL: Final = timedelta(seconds=30)
"""How long the leases of a test's processes last."""

IMMEDIATELY: Final = RetryPolicy(backoff=timedelta())
ONCE: Final = RetryPolicy(max_attempts=1)
LATER: Final = RetryPolicy(backoff=HOUR, max_backoff=HOUR)

SOMEBODY: Final = UserActor(id="somebody")

_REGISTRY: Final = EventRegistry()


class PlantEvent(Event, abstract=True, event_namespace="contract_plant", registry=_REGISTRY):
    """The events of the plant that these tests react to."""


class Alarm(PlantEvent):
    """A machine gives alarm."""

    machine: str = "press"
    level: int = 1


class Stopped(PlantEvent):
    """A machine has stopped."""

    machine: str = "press"


class Repaired(PlantEvent):
    """A machine is repaired; what only runs publish."""

    machine: str = "press"
    part: int = 0


class Answered(PlantEvent):
    """Somebody has answered a run that asked."""

    run_id: str = ""
    answer: JsonValue = None
    attempt: int | None = None


class Verdict(Feedback, name="contract_verdict", targets={"run", "firing", "chain"}):
    """Whether something was right."""

    correct: bool


def reaction_rule(name: str = "contract:alarms", **changes: Any) -> Rule:
    """Returns a rule that acts at each alarm of a machine."""
    return Rule.model_validate({"name": name, "when": on(Alarm), "scope": by("machine"), "then": run("act")} | changes)


def stored_rule(name: str = "contract_stored:alarms", **changes: Any) -> Rule:
    """Returns a rule as it can be stored, which acts at each alarm."""
    when = on(Alarm).at_most(5, per=5 * timedelta(minutes=1))
    return Rule.model_validate({"name": name, "when": when, "then": run("act")} | changes)


def _anything(*_: object) -> bool:
    return True


STORED_RULES: Final = StoredRules(allow=_anything, actions={"act": None}, namespaces=frozenset({"contract_stored"}))


class KilledError(BaseException):
    """Nothing that a process was killed in gets to the storage any more."""


class Tap:
    """A storage's calls on their way from one process, each of which a test is told of before it is made.

    A call is named as its method, and one of a transaction `transaction.` and its method; `transaction` begins one and
    `commit` ends one.

    Attributes:
        before: Is awaited before each call with its name and its arguments.
        calls: The names of the calls so far.
        killed: Whether the process is, so that none of its calls gets through.
    """

    def __init__(self, storage: Storage) -> None:
        self.before: Callable[..., Awaitable[None]] = _nothing_before
        self.calls: list[str] = []
        self.killed = False
        self._storage = storage

    def storage(self) -> Storage:
        """Returns the storage as the process has it."""
        return cast("Storage", _Tapped(self, self._storage))

    async def passing(self, name: str, *arguments: Any) -> None:
        """Tells of a call, and lets it through unless the process is killed."""
        self.calls.append(name)
        if not self.killed:
            await self.before(name, *arguments)
        if self.killed:
            raise KilledError


async def _nothing_before(name: str, *_: Any) -> None:
    """What a test does before a call if it does nothing."""


class _Tapped:
    """A storage, or a transaction of one, whose calls go through a tap."""

    def __init__(self, tap: Tap, tapped: Any, prefix: str = "") -> None:
        self._tap = tap
        self._tapped = tapped
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(self._tapped, name)
        return partial(self._call, f"{self._prefix}{name}", found) if callable(found) else found

    async def _call(self, name: str, call: Any, *arguments: Any, **options: Any) -> Any:
        await self._tap.passing(name, *arguments)
        return await call(*arguments, **options)

    @asynccontextmanager
    async def transaction(self, workspace: WorkspaceRef) -> AsyncGenerator["_Tapped"]:
        await self._tap.passing("transaction", workspace)
        async with self._tapped.transaction(workspace) as transaction:
            yield _Tapped(self._tap, transaction, "transaction.")
            await self._tap.passing("commit", workspace)


class Hold:
    """Holds up one of a process's calls until it is let go.

    Attributes:
        reached: Whether it is held up.
    """

    def __init__(self, tap: Tap, *names: str, after: int = 0) -> None:
        """Waits for the call.

        Args:
            tap: The process's way to the storage.
            names: The names that the call may have.
            after: How many calls of these names are let through before.
        """
        self.reached = asyncio.Event()
        self._open = asyncio.Event()
        self._names = names
        self._left = after
        tap.before = self._before

    def let_go(self) -> None:
        """Lets the call go on."""
        self._open.set()

    async def _before(self, name: str, *_: Any) -> None:
        if name in self._names:
            self._left -= 1
            if self._left == -1:
                self.reached.set()
                await self._open.wait()


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the application.

    Attributes:
        application: Its workspaces.
        reactor: Its reactor.
        tap: Its way to the storage.
    """

    application: Application
    reactor: Reactor[None]
    tap: Tap

    async def settle(self) -> None:
        """Does what there is to do now."""
        await self.reactor.settle()

    @asynccontextmanager
    async def serving(self, grace: timedelta = TTL) -> AsyncGenerator[asyncio.Event]:
        """Serves until the block ends, or the event that it is given is set and nothing is in hand any more."""
        stop = asyncio.Event()
        serving = asyncio.create_task(self.reactor.serve(stop, grace=grace))
        try:
            yield stop
            stop.set()
            await serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    @asynccontextmanager
    async def doing(self, work: Coroutine[Any, Any, Any]) -> AsyncGenerator[asyncio.Task[Any]]:
        """Does something meanwhile, and waits for its end unless it is killed."""
        task = asyncio.create_task(work)
        try:
            yield task
            if not self.tap.killed:
                await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def kill(self, *tasks: asyncio.Task[Any]) -> None:
        """Kills the process: whatever it is at, nothing of it gets to the storage any more."""
        self.tap.killed = True
        for task in tasks:
            task.cancel()
        await self.ended(*tasks)

    async def killed_at_call(self, number: int) -> bool:
        """Settles, but is killed at one of its calls; returns whether it made so many.

        Not at those inside a transaction, of which nothing stays unless it is killed after its commit.
        """
        settling: asyncio.Task[None]

        async def die(name: str, *_: Any) -> None:
            if sum("." not in call for call in self.tap.calls) == number and "." not in name:
                self.tap.killed = True
                settling.cancel()

        self.tap.before = die
        settling = asyncio.create_task(self.settle())
        await self.ended(settling)
        return self.tap.killed

    async def failed_at_call(self, number: int) -> bool:
        """Settles over a storage of which one call fails, and returns whether it made so many. No later one fails."""
        failed = False

        async def fail(name: str, *_: Any) -> None:
            nonlocal failed
            if not failed and len(self.tap.calls) == number:
                failed = True
                raise StorageError(f"{name} failed")

        self.tap.before = fail
        with suppress(StorageError):
            await self.settle()
        self.tap.before = _nothing_before
        return failed

    async def ended(self, *tasks: asyncio.Task[Any]) -> None:
        """Waits until the process has ended what it was at; if it was killed, nobody hears how."""
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert self.tap.killed or not any(outcomes), outcomes


class Gate:
    """An action that says when it is at work, and works until it is let go.

    Attributes:
        begun: What it was given, each time it begins.
        cancelled: The runs in which it was cancelled.
        ended: The runs in which it was let go.
    """

    def __init__(self, output: Any = None) -> None:
        self.begun: asyncio.Queue[Reaction[None]] = asyncio.Queue()
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self._open = asyncio.Event()
        self._output = output

    def let_go(self) -> None:
        """Lets all that are at work, and all that come, end."""
        self._open.set()

    async def __call__(self, reaction: Reaction[None]) -> Any:
        """Works until it is let go."""
        self.begun.put_nowait(reaction)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(reaction.run_id)
            raise
        self.ended.append(reaction.run_id)
        return self._output


async def stubbornly[T](work: Coroutine[Any, Any, T]) -> T:
    """Awaits something to its end, however often it is cancelled meanwhile."""
    task = asyncio.create_task(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


class Asking:
    """An action that asks until it is answered, and returns the answer.

    Attributes:
        reactions: What it was given, in order.
    """

    def __init__(self, request: Any = "go on?", *, only: Collection[int] = (), **pause: Any) -> None:
        """Asks something.

        Args:
            request: What it asks.
            only: The places of the first envelopes of those firings at which it asks, by default all.
            pause: How it pauses besides, by default for any time.
        """
        self.reactions: list[Reaction[None]] = []
        self._only = only
        self._pause = Pause(request, **pause)

    async def __call__(self, reaction: Reaction[None]) -> Any:
        """Makes the next attempt."""
        self.reactions.append(reaction)
        if reaction.answer is not None or (self._only and reaction.envelopes[0].seq not in self._only):
            return told(reaction)
        return self._pause


def told(reaction: Reaction[None]) -> JsonValue:
    """Returns what an attempt was told."""
    return None if reaction.answer is None else reaction.answer.value


class Script:
    """An action whose attempts go as written: each raises an exception or returns a value, and the last goes on.

    Attributes:
        reactions: What it was given, in order.
    """

    def __init__(self, *steps: Any) -> None:
        self.reactions: list[Reaction[None]] = []
        self._steps = list(steps)

    async def __call__(self, reaction: Reaction[None]) -> Any:
        """Makes the next attempt."""
        self.reactions.append(reaction)
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, BaseException):
            raise step
        return step

    @property
    def attempts(self) -> list[int]:
        """The numbers of the attempts."""
        return [reaction.attempt for reaction in self.reactions]

    @property
    def seqs(self) -> list[int]:
        """The places of the first envelopes that it was given."""
        return [reaction.envelopes[0].seq for reaction in self.reactions]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactorTrial(StorageTrial):
    """A storage on trial, and an application over it.

    Attributes:
        open_beside_at: Opens a second storage on the same data, with a clock of its own.
    """

    open_beside_at: Callable[[ManualClock], AbstractAsyncContextManager[Storage]]

    def application(self, *rules: Rule, storage: Storage | None = None, **options: Any) -> Application:
        """Returns the application with these rules."""
        settings: dict[str, Any] = {
            "events": [Alarm, Stopped, Answered],
            "emitted": [Repaired],
            "registry": _REGISTRY,
            "stored_rules": STORED_RULES,
            **options,
        }
        return Application(self.storage if storage is None else storage, rules=rules, **settings)

    def process(
        self, *rules: Rule, act: Any = None, actions: Actions | None = None, over: Storage | None = None, **options: Any
    ) -> Process:
        """Returns a process of the application.

        Args:
            rules: Its rules.
            act: The only action, by default one that does nothing.
            actions: The actions, by name, if there are others.
            over: Its storage, by default the one on trial.
            options: What else its reactor and its workspaces are given.
        """
        tap = Tap(self.storage if over is None else over)
        own: dict[str, Any] = {"lease_ttl": TTL} | {
            name: options.pop(name) for name in _REACTORS_OWN if name in options
        }
        application = self.application(*rules, storage=tap.storage(), **options)
        given: Actions = {"act": act or Script(None)} if actions is None else actions
        reactor: Reactor[None] = Reactor(application, actions=given, **own)
        return Process(application, reactor, tap)

    def open(self, workspace: WorkspaceRef = WORKSPACE, *, actor: Actor = SOMEBODY, **options: Any) -> Workspace:
        """Returns a workspace in somebody's hands."""
        return self.application(**options).handle(workspace, actor=actor)

    async def publish(self, *events: Event, workspace: WorkspaceRef = WORKSPACE) -> list[Envelope]:
        """Publishes events together."""
        return [item.envelope for item in await self.open(workspace).publish_many(list(events))]

    async def log(self, workspace: WorkspaceRef = WORKSPACE) -> list[Envelope]:
        """Returns the log."""
        return await self.open(workspace).read()

    async def types(self, workspace: WorkspaceRef = WORKSPACE) -> list[str]:
        """Returns the local names of the log's event types."""
        return [envelope.event_type.partition(":")[2] for envelope in await self.log(workspace)]

    async def facts(self, event: type[Event], workspace: WorkspaceRef = WORKSPACE) -> list[dict[str, Any]]:
        """Returns the payloads of one type of event."""
        return [dict(envelope.payload) for envelope in await self.open(workspace).read(types=[event])]

    async def runs(self, workspace: WorkspaceRef = WORKSPACE, **query: Any) -> list[Run]:
        """Returns the runs in the order of their creation."""
        return (await self.open(workspace).runs(**query))[::-1]

    async def statuses(self, workspace: WorkspaceRef = WORKSPACE) -> list[str]:
        """Returns what became of the runs, in the order of their creation."""
        return [one.status for one in await self.runs(workspace)]

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Waits, commit after commit, until something holds."""
        wakeups = self.storage.wakeups
        with wakeups.listen() as listener:
            while not await holds():
                await listener.wait(wakeups.poll_interval)

    async def until_ended(self, number: int, workspace: WorkspaceRef = WORKSPACE) -> None:
        """Waits until so many runs have ended."""

        async def ended() -> bool:
            return sum(not one.unfinished for one in await self.runs(workspace)) >= number

        await self.until(ended)

    async def until_paused(self, number: int, workspace: WorkspaceRef = WORKSPACE) -> None:
        """Waits until so many runs are paused."""

        async def paused() -> bool:
            return (await self.statuses(workspace)).count("paused") >= number

        await self.until(paused)

    async def one(self, workspace: WorkspaceRef = WORKSPACE) -> Run:
        """Returns the one run."""
        (found,) = await self.runs(workspace)
        return found

    async def leases(self, workspace: WorkspaceRef = WORKSPACE) -> dict[str, str]:
        """Returns who holds the leases of the runs and of the evaluation."""
        names = [EVALUATION_LEASE, *(run_lease(run.id) for run in await self.runs(workspace))]
        async with self.transaction(workspace) as transaction:
            return await transaction.holders(names)

    async def decided(self, *rules: Rule, workspace: WorkspaceRef = WORKSPACE) -> list[tuple[str, dict[str, Any]]]:
        """Returns what the log says that these rules decided, and asserts that this is what they decide on it."""
        log = await self.log(workspace)
        facts = [dict(item.payload) for item in log if item.event_type in _DECISIONS]
        logged = [(each.name, fact) for each in rules for fact in facts if fact["rule"] == each.name]
        batch = Batch(log)
        expected = [
            (each.name, dict(fact.payload))
            for each in rules
            for fact in evaluate(each, RuleProgress(each.name, 1, 0, each.definition()), {}, batch).facts
        ]
        assert logged == expected
        return logged

    async def recorded_once(self, workspace: WorkspaceRef = WORKSPACE) -> None:
        """Asserts that each firing has one run, that attempts follow each other, and that each run ended once."""
        log = await self.log(workspace)
        runs = {one.id: one for one in await self.runs(workspace)}
        fired = [item.payload["firing_id"] for item in log if item.event_type == RuleFired.event_type]
        assert sorted(fired) == sorted(runs)
        begun: dict[str, int] = dict.fromkeys(runs, 0)
        at_work: set[str] = set()
        for item in log:
            kind = item.event_type.removeprefix("reflexr:run_")
            if kind == "started":
                assert item.payload["run_id"] not in at_work
                at_work.add(item.payload["run_id"])
                begun[item.payload["run_id"]] += 1
                assert item.payload["attempt"] == begun[item.payload["run_id"]]
            elif kind in _ENDINGS:
                at_work.discard(item.payload["run_id"])
        assert {run_id: one.attempt for run_id, one in runs.items()} == begun
        for status, kind in (("succeeded", "succeeded"), ("dead_lettered", "dead_lettered")):
            ended = [item.payload["run_id"] for item in log if item.event_type == f"reflexr:run_{kind}"]
            assert sorted(ended) == sorted(one.id for one in runs.values() if one.status == status)


_REACTORS_OWN: Final = (
    "holder",
    "batch_size",
    "lease_ttl",
    "concurrency",
    "rule_concurrency",
    "workspace_concurrency",
    "run_context",
)
_DECISIONS: Final = frozenset({RuleFired.event_type, RuleErrored.event_type})
_ENDINGS: Final = frozenset({"retrying", "paused", "succeeded", "dead_lettered", "cancelled"})


class ReactorGuarantees(StorageGuarantees):
    """Some of the promises of reactors over a storage, over the one factory of storages.

    Attributes:
        crowd: How many runs there are where there are many.
    """

    crowd: ClassVar[int] = 200

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[ReactorTrial]:
        async with super().trial() as trial:
            shared = {each.name: getattr(trial, each.name) for each in fields(trial)}
            yield ReactorTrial(**shared, open_beside_at=lambda clock: self.beside(trial.storage, clock))
