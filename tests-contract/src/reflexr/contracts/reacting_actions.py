"""What a reactor promises of actions that misbehave: each ends in a way that is defined and recorded, others go on."""

import asyncio
from contextlib import suppress
from typing import Any, Final, override

from reflexr.contracts.adapters import Feature
from reflexr.contracts.contract import guarantee
from reflexr.contracts.reacting_trials import (
    IMMEDIATELY,
    ONCE,
    TTL,
    Alarm,
    ReactorGuarantees,
    ReactorTrial,
    Script,
    reaction_rule,
    stubbornly,
)
from reflexr.contracts.samples import SECOND
from reflexr.workspace import Reaction

LARGE: Final = 50_000_000
"""How many bytes a large output has."""


class MisbehavingActionsContract(ReactorGuarantees):
    """Whatever an action does, its run ends in a recorded way, and every other run goes on."""

    @guarantee(Feature.MOVABLE_CLOCK)
    async def test_an_action_that_blocks_the_event_loop_costs_at_most_its_attempt(self, trial: ReactorTrial) -> None:
        """Whoever blocks everything for longer than a lease lasts ends, here or at another attempt; others go on."""

        async def act(reaction: Reaction[None]) -> str:
            if reaction.scope["machine"] == "press" and reaction.attempt == 1:
                # Nobody else does anything meanwhile, so no lease is renewed.
                trial.clock.advance(2 * TTL)
            return f"attempt {reaction.attempt}"

        rule = reaction_rule(retry=IMMEDIATELY)
        processes = [trial.process(rule, act=act) for _ in range(2)]
        async with processes[0].serving(), processes[1].serving():
            await trial.publish(Alarm(), Alarm(), Alarm(machine="saw"))
            await trial.until_ended(3)
        runs = await trial.runs()
        assert [(one.status, one.output) for one in runs] == [("succeeded", f"attempt {one.attempt}") for one in runs]
        await trial.recorded_once()

    @guarantee()
    async def test_a_cancelled_action_that_never_yields_holds_up_nobody(self, trial: ReactorTrial) -> None:
        """A run is cancelled though its action makes nothing of it, and the next one of its scope goes on."""
        act = _Stubborn()
        process = trial.process(reaction_rule(), act=act, concurrency=2)
        async with process.serving():
            await trial.publish(Alarm(), Alarm(machine="saw"))
            reaction = await act.begun.get()
            await trial.open().cancel_run(reaction.run_id)
            await trial.publish(Alarm())
            await trial.until_ended(3)
            assert await trial.statuses() == ["cancelled", "succeeded", "succeeded"]
            act.end()
        assert await trial.statuses() == ["cancelled", "succeeded", "succeeded"]
        await trial.recorded_once()

    @guarantee()
    async def test_an_action_that_makes_light_of_its_timeout_has_failed(self, trial: ReactorTrial) -> None:
        """An attempt that takes too long is recorded as failed though its action does not yield, and others go on."""
        act = _Stubborn()
        rule = reaction_rule(timeout=SECOND / 100, retry=ONCE)
        process = trial.process(rule, act=act, concurrency=2, lease_ttl=3 * SECOND)
        async with process.serving():
            await trial.publish(Alarm(), Alarm())
            await act.begun.get()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.soon.total_seconds() / 4):
                    await trial.until_ended(2)
            before = await trial.statuses()
            act.end()
        assert before == ["dead_lettered", "succeeded"]
        assert [(one.status, one.reason) for one in await trial.runs()] == [
            ("dead_lettered", "timeout"),
            ("succeeded", None),
        ]
        await trial.recorded_once()

    @guarantee()
    async def test_an_action_that_never_yields_keeps_no_process_from_ending(self, trial: ReactorTrial) -> None:
        """A process ends after its grace period whatever its actions do; their attempts are recorded as abandoned."""
        act = _Stubborn()
        rule = reaction_rule(retry=IMMEDIATELY)
        await trial.publish(Alarm())
        process = trial.process(rule, act=act, lease_ttl=3 * SECOND)
        stop = asyncio.Event()
        serving = asyncio.create_task(process.reactor.serve(stop, grace=SECOND / 100))
        await act.begun.get()
        stop.set()
        done, _ = await asyncio.wait([serving], timeout=self.soon.total_seconds() / 4)
        left = [(one.status, one.reason) for one in await trial.runs()]
        act.end()
        await serving
        assert done == {serving}
        assert left == [("retrying", "abandoned")]
        await trial.process(rule).settle()
        assert [(one.status, one.attempt) for one in await trial.runs()] == [("succeeded", 2)]

    @guarantee()
    async def test_an_output_that_is_not_json_fails_its_attempt(self, trial: ReactorTrial) -> None:
        """What is neither JSON nor a model is no output: its attempt fails with a reason, and others go on."""
        outputs = [object(), float("nan"), {1: 2}, b"bytes", {"deep": {"set": {1}}}, "\ud800", _nested(2_000)]

        async def act(reaction: Reaction[None]) -> Any:
            return outputs[reaction.envelopes[0].seq - 1]

        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(len(outputs))))
        await trial.process(reaction_rule(retry=ONCE), act=act).settle()
        assert [(one.status, one.reason) for one in await trial.runs()] == [("dead_lettered", "invalid_output")] * len(
            outputs
        )

    @guarantee()
    async def test_whatever_an_action_raises_fails_its_attempt(self, trial: ReactorTrial) -> None:
        """Also what is no `Exception`, and a cancellation of its own, fails the one attempt and nothing else."""
        act = _Raising([_OddError("odd"), SystemExit(3), asyncio.CancelledError("of its own"), _MuteError()])
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(5)))
        process = trial.process(reaction_rule(retry=ONCE), act=act)
        async with process.serving():
            await trial.until_ended(5)
        runs = await trial.runs()
        assert [one.status for one in runs] == ["dead_lettered"] * 4 + ["succeeded"]
        assert [one.error for one in runs][:2] == ["_OddError: odd", "SystemExit: 3"]
        assert [one.reason for one in runs] == [None, None, "cancelled", None, None]
        assert all(one.error for one in runs[:4])

    @guarantee()
    async def test_whatever_an_attempt_fails_with_is_recorded(self, trial: ReactorTrial) -> None:
        """Errors of any length, and with characters that no database holds, are recorded, if need be changed."""
        act = _Raising([ValueError("x" * 1_000_000), ValueError("a\0b"), ValueError("👍" * 5_000)])
        await trial.publish(*(Alarm(machine=f"m{number}") for number in range(3)))
        await trial.process(reaction_rule(retry=ONCE), act=act).settle()
        assert await trial.statuses() == ["dead_lettered"] * 3
        assert all(one.error and len(one.error) <= 4_000 for one in await trial.runs())

    @guarantee()
    async def test_an_output_of_fifty_megabytes_is_recorded_or_refused(self, trial: ReactorTrial) -> None:
        """A large output is recorded whole, or fails its attempt with a reason; others go on either way."""
        output = "x" * LARGE

        async def act(reaction: Reaction[None]) -> Any:
            return output if reaction.scope["machine"] == "press" else "small"

        await trial.publish(Alarm(), Alarm(machine="saw"))
        await trial.process(reaction_rule(retry=ONCE), act=act).settle()
        large, small = await trial.runs()
        assert (small.status, small.output) == ("succeeded", "small")
        assert large.status in {"succeeded", "dead_lettered"}
        assert (large.output == output) if large.status == "succeeded" else large.reason

    @guarantee()
    async def test_an_action_that_dies_with_its_storage_loses_only_its_attempt(self, trial: ReactorTrial) -> None:
        """An action that raises what a storage raises has failed like any other, and its process goes on."""
        act = Script(ConnectionResetError("its own connection"), None)
        await trial.publish(Alarm(), Alarm())
        await trial.process(reaction_rule(retry=ONCE), act=act).settle()
        assert await trial.statuses() == ["dead_lettered", "succeeded"]


class _Stubborn:
    """An action that does not yield to cancellation in its first attempt, until it is told to end."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Reaction[None]] = asyncio.Queue()
        self._end = asyncio.Event()

    def end(self) -> None:
        self._end.set()

    async def __call__(self, reaction: Reaction[None]) -> None:
        if reaction.envelopes[0].seq == 1 and reaction.attempt == 1:
            self.begun.put_nowait(reaction)
            await stubbornly(self._end.wait())


class _Raising:
    """An action that raises what is listed, in the order of the firings, and then nothing."""

    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors

    async def __call__(self, reaction: Reaction[None]) -> None:
        number = reaction.envelopes[0].seq - 1
        if number < len(self._errors):
            raise self._errors[number]


class _OddError(BaseException):
    pass


class _MuteError(BaseException):
    @override
    def __str__(self) -> str:
        raise RuntimeError("its text cannot be had")


def _nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value
