"""`CommandResultsContract`: everything that `CommandResults` promises."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, override

from pydantic import JsonValue

from reflexr.contracts.adapters import Feature
from reflexr.contracts.cancellation import Moment, cancel_at_each_await
from reflexr.contracts.contract import Contract, guarantee
from reflexr.contracts.samples import WORKSPACE, run
from reflexr.contracts.trials import together
from reflexr.core import (
    CommandRejected,
    CommandResult,
    CommandSucceeded,
    DepthExceededRejection,
    Published,
    RunChanged,
    ValidationFailedRejection,
)
from reflexr.workspace import CommandKey, CommandResults, WorkspaceRef

KEY: Final = CommandKey(WORKSPACE, '["user","someone"]', "c1")
_TURNS: Final = 20


@dataclass(frozen=True, slots=True)
class CommandResultsTrial:
    """Command results on trial.

    Attributes:
        results: They hold nothing yet.
        open_beside: Opens the results of another process on the same data.
    """

    results: CommandResults
    open_beside: Callable[[], AbstractAsyncContextManager[CommandResults]]


class CommandResultsContract(Contract[CommandResultsTrial]):
    """Everything that `CommandResults` promises, one guarantee a test.

    Derive a class named `Test…` and override `results`.
    """

    def results(self) -> AbstractAsyncContextManager[CommandResults]:
        """Opens command results that hold nothing. This is the factory to override."""
        raise self.missing("results")

    def beside(self, results: CommandResults) -> AbstractAsyncContextManager[CommandResults]:
        """Opens the results that another process would have on the data of those that `results` opened.

        To be overridden by whoever declares `Feature.SHARED_DATA`.
        """
        raise NotImplementedError(f"{type(self).__name__} declares {Feature.SHARED_DATA!r}: override beside() too")

    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[CommandResultsTrial]:
        async with self.results() as results:
            yield CommandResultsTrial(results, lambda: self.beside(results))

    @guarantee()
    async def test_the_first_who_asks_gets_the_claim(self, trial: CommandResultsTrial) -> None:
        """Whoever asks first for a command's result gets none, and with that the claim to carry it out."""
        assert await trial.results.claim(KEY) is None

    @guarantee()
    async def test_a_result_is_remembered(self, trial: CommandResultsTrial) -> None:
        """Once a command is finished, whoever asks gets its result, again and again."""
        await trial.results.claim(KEY)
        await trial.results.finish(KEY, _published(1))
        assert [await trial.results.claim(KEY) for _ in range(3)] == [_published(1)] * 3

    @guarantee()
    async def test_who_asks_meanwhile_gets_the_first_result(self, trial: CommandResultsTrial) -> None:
        """Whoever asks while a command is carried out waits for its result; nobody else carries it out."""
        await _who_asks_meanwhile_waits(trial.results, trial.results)

    @guarantee()
    async def test_of_many_who_ask_at_once_one_gets_the_claim(self, trial: CommandResultsTrial) -> None:
        """Of 20 who ask at once, one carries the command out and the others get its result."""
        claims: list[int] = []

        async def ask(number: int) -> CommandResult:
            if (result := await trial.results.claim(KEY)) is not None:
                return result
            claims.append(number)
            await asyncio.sleep(0)
            await trial.results.finish(KEY, _published(number + 1))
            return _published(number + 1)

        results = await together(ask(number) for number in range(20))
        assert len(claims) == 1
        assert results == [_published(claims[0] + 1)] * 20

    @guarantee()
    async def test_a_claim_that_is_given_up_goes_to_one_who_waits(self, trial: CommandResultsTrial) -> None:
        """Where a claim is given up, one of those who wait gets it, and the others wait for what comes of that."""
        await trial.results.claim(KEY)
        waiting = {asyncio.create_task(trial.results.claim(KEY)) for _ in range(3)}
        await _give_way(trial.results)
        await trial.results.abandon(KEY)
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [claim.result() for claim in done] == [None]
        await trial.results.finish(KEY, _published(1))
        assert await asyncio.gather(*waiting) == [_published(1)] * 2

    @guarantee()
    async def test_a_claim_that_is_given_up_can_be_had_again(self, trial: CommandResultsTrial) -> None:
        """Where a claim was given up while nobody waited, the next who asks gets it."""
        await trial.results.claim(KEY)
        await trial.results.abandon(KEY)
        assert await trial.results.claim(KEY) is None

    @guarantee()
    async def test_commands_are_told_apart_by_all_of_their_key(self, trial: CommandResultsTrial) -> None:
        """A result is that of one tenant, workspace, participant and command, each told apart by every character."""
        keys = [
            KEY,
            CommandKey(WorkspaceRef("another", KEY.workspace.workspace_id), KEY.participant, KEY.command_id),
            CommandKey(WorkspaceRef(KEY.workspace.tenant_id, "another"), KEY.participant, KEY.command_id),
            CommandKey(KEY.workspace, '["user","Someone"]', KEY.command_id),
            CommandKey(KEY.workspace, KEY.participant, "C1"),
            CommandKey(KEY.workspace, KEY.participant, "c1 "),
            CommandKey(KEY.workspace, KEY.participant, "caf\u00e9"),
            CommandKey(KEY.workspace, KEY.participant, "cafe\u0301"),
            CommandKey(WorkspaceRef("a/b", "c"), KEY.participant, "c%"),
            CommandKey(WorkspaceRef("a", "b/c"), KEY.participant, "c%"),
            CommandKey(KEY.workspace, "p" * 3_000, "\U0001f44d" * 255),
            CommandKey(KEY.workspace, "p" * 2_999 + "q", "\U0001f44d" * 255),
        ]
        for seq, key in enumerate(keys, start=1):
            assert await trial.results.claim(key) is None
            await trial.results.finish(key, _published(seq))
        assert [await trial.results.claim(key) for key in keys] == [_published(seq) for seq in range(1, len(keys) + 1)]

    @guarantee()
    async def test_a_result_comes_back_as_it_was(self, trial: CommandResultsTrial) -> None:
        """Outcomes and rejections come back whole: texts, large integers, floats and the order of keys."""
        values: dict[str, JsonValue] = {"z": [2**64, 1.0, 1, -0.0, "caf\u00e9\x00"], "a": {}, "": None}
        results: list[CommandResult] = [
            CommandSucceeded(command_id="c1", outcome=RunChanged(run=run("r1", output=values))),
            CommandRejected(
                command_id="c1",
                rejection=ValidationFailedRejection(message="no \U0001f44d", errors=("one: '", "two: %")),
            ),
            CommandRejected(command_id="c1", rejection=DepthExceededRejection(message="deep", depth=9, limit=8)),
        ]
        for number, result in enumerate(results):
            key = CommandKey(WORKSPACE, KEY.participant, f"c{number}")
            await trial.results.claim(key)
            await trial.results.finish(key, result)
            read = await trial.results.claim(key)
            assert read is not None
            assert read.model_dump_json() == result.model_dump_json()

    @guarantee()
    async def test_who_is_cancelled_while_waiting_holds_nothing(self, trial: CommandResultsTrial) -> None:
        """Somebody who is cancelled while waiting for a result has no claim, and keeps nobody else from it."""
        await trial.results.claim(KEY)
        waiting = asyncio.create_task(trial.results.claim(KEY))
        await _give_way(trial.results)
        waiting.cancel()
        await asyncio.wait([waiting])
        await trial.results.abandon(KEY)
        assert await trial.results.claim(KEY) is None

    @guarantee()
    async def test_who_is_cancelled_while_asking_holds_nothing(self, trial: CommandResultsTrial) -> None:
        """Somebody who is cancelled at any await of a claim holds nothing: the next who asks gets the claim."""
        moments: list[Moment] = ["waiting", "answered"]
        for moment in moments:
            claimed: list[int] = []

            async def ask(number: int, moment: Moment = moment, claimed: list[int] = claimed) -> None:
                await trial.results.claim(_numbered(moment, number))
                claimed.append(number)

            async for number in cancel_at_each_await(ask, moment):
                if number not in claimed:
                    assert await trial.results.claim(_numbered(moment, number)) is None

    @guarantee(Feature.SHARED_DATA)
    async def test_a_result_is_that_of_every_process(self, trial: CommandResultsTrial) -> None:
        """A result that one process remembers is given to those who ask in another."""
        async with trial.open_beside() as other:
            await trial.results.claim(KEY)
            await trial.results.finish(KEY, _published(1))
            assert await other.claim(KEY) == _published(1)

    @guarantee(Feature.SHARED_DATA)
    async def test_who_asks_meanwhile_in_another_process_gets_the_first_result(
        self, trial: CommandResultsTrial
    ) -> None:
        """Whoever asks in another process while a command is carried out waits for its result."""
        async with trial.open_beside() as other:
            await _who_asks_meanwhile_waits(trial.results, other)


async def _who_asks_meanwhile_waits(first: CommandResults, second: CommandResults) -> None:
    assert await first.claim(KEY) is None
    waiting = [asyncio.create_task(second.claim(KEY)) for _ in range(3)]
    await _give_way(second)
    assert not any(claim.done() for claim in waiting)
    await first.finish(KEY, _published(1))
    assert await asyncio.gather(*waiting) == [_published(1)] * 3


async def _give_way(results: CommandResults) -> None:
    """Does as much with other commands as those who ask need to come to where they have to wait."""
    for number in range(_TURNS):
        await results.claim(_numbered("other", number))
        await results.abandon(_numbered("other", number))
        await asyncio.sleep(0)


def _numbered(name: str, number: int) -> CommandKey:
    return CommandKey(WORKSPACE, KEY.participant, f"{name} {number}")


def _published(seq: int) -> CommandResult:
    return CommandSucceeded(command_id="c1", outcome=Published(seq=seq, id="e1", duplicate=False))
