"""Functions keep the contract of actions, and each of its promises is noticed when it is broken."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, override

import pytest
from pydantic import BaseModel

from reflexr.contracts import ActionContract, Feature, Work
from reflexr.workspace import Action, ActionFunction, FunctionAction, Output, Pause, Reaction, with_params

from .timeless import TimelessLoop


class TestFunctions(ActionContract):
    features = frozenset({Feature.QUESTIONS})

    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any] | ActionFunction[Any]:
        async def act(reaction: Reaction[Any]) -> Output:
            return await work(reaction)

        async def act_with(reaction: Reaction[Any], given: BaseModel) -> Output:
            assert reaction.params is given
            return await work(reaction)

        return act if params is None else with_params(act_with, params)

    @override
    def question(self, work: Work, answer_timeout: timedelta | None) -> ActionFunction[Any]:
        async def act(reaction: Reaction[Any]) -> Output:
            return await ask(work, reaction, answer_timeout)

        return act


async def ask(work: Work, reaction: Reaction[Any], answer_timeout: timedelta | None) -> Output:
    if reaction.answer is None:
        return Pause("may it be repaired?", timeout=answer_timeout)
    return await work(reaction)


type Way = Callable[[Work, Reaction[Any]], Awaitable[Output]]
"""How an action goes about its work."""

type WayToAsk = Callable[[Work, Reaction[Any], timedelta | None], Awaitable[Output]]
"""How an action asks, and then goes about its work."""


class OddContract(ActionContract):
    """Over actions that go about their work in a way of their own."""

    def __init__(self, way: Way, *, params: bool = True, ask: WayToAsk = ask) -> None:
        self._way = way
        self._params = params
        self._ask = ask

    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        return FunctionAction("act", partial(_go, self._way, work), params if self._params else None)

    @override
    def question(self, work: Work, answer_timeout: timedelta | None) -> Action[Any]:
        return FunctionAction("act", partial(_ask, self._ask, work, answer_timeout), None)

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()


async def _go(way: Way, work: Work, reaction: Reaction[Any]) -> Output:
    return await way(work, reaction)


async def _ask(way: WayToAsk, work: Work, answer_timeout: timedelta | None, reaction: Reaction[Any]) -> Output:
    return await way(work, reaction, answer_timeout)


async def as_it_should(work: Work, reaction: Reaction[Any]) -> Output:
    return await work(reaction)


async def in_other_words(work: Work, reaction: Reaction[Any]) -> Output:
    return str(await work(reaction))


async def twice(work: Work, reaction: Reaction[Any]) -> Output:
    await work(reaction)
    return await work(reaction)


async def whatever_comes(work: Work, reaction: Reaction[Any]) -> Output:
    try:
        return await work(reaction)
    except Exception:
        return None


async def for_another_reason(work: Work, reaction: Reaction[Any]) -> Output:
    try:
        return await work(reaction)
    except Exception as error:
        raise RuntimeError("something went wrong") from error


async def as_an_outsider(work: Work, reaction: Reaction[Any]) -> Output:
    outside = reaction.workspace.as_actor(reaction.workspace.actor)
    own = Reaction(
        workspace=outside.caused_by(reaction.run.causation, correlation_id="another"),
        run=reaction.run.model_copy(update={"checkpoints": reaction.attempt}),
        rule=reaction.rule,
        envelopes=reaction.envelopes,
        deps=reaction.deps,
        params=reaction.params,
        save_checkpoint=_never,
    )
    return await work(own)


async def _never(*_: Any) -> Any:
    raise NotImplementedError


async def in_the_background(work: Work, reaction: Reaction[Any]) -> Output:
    return await asyncio.shield(asyncio.ensure_future(work(reaction)))


_ONE_AT_A_TIME = asyncio.Lock()


async def one_at_a_time(work: Work, reaction: Reaction[Any]) -> Output:
    async with _ONE_AT_A_TIME:
        return await work(reaction)


async def nobody(work: Work, reaction: Reaction[Any], answer_timeout: timedelta | None) -> Output:
    return await work(reaction)


async def at_each_attempt(work: Work, reaction: Reaction[Any], answer_timeout: timedelta | None) -> Output:
    if reaction.attempt != 2:
        return Pause("may it be repaired?", timeout=answer_timeout)
    return await work(reaction)


async def for_ever(work: Work, reaction: Reaction[Any], answer_timeout: timedelta | None) -> Output:
    return await ask(work, reaction, None)


async def for_nothing(work: Work, reaction: Reaction[Any], answer_timeout: timedelta | None) -> Output:
    return await ask(_nothing_to_do, reaction, answer_timeout)


async def without_a_question(work: Work, reaction: Reaction[Any], answer_timeout: timedelta | None) -> Output:
    return Pause(None, timeout=answer_timeout) if reaction.answer is None else await work(reaction)


async def _nothing_to_do(_: Reaction[Any]) -> None:
    """What is done where the answer is not waited for."""


def promises() -> list[str]:
    return [name for name in vars(ActionContract) if name.startswith("test_")]


def broken(contract: ActionContract) -> list[str]:
    """The promises that an adapter breaks."""
    found: list[str] = []
    for name in promises():
        try:
            getattr(contract, name)()
        except Exception:
            found.append(name.removeprefix("test_"))
        except pytest.fail.Exception:
            found.append(name.removeprefix("test_"))
    return found


def test_a_contract_without_its_factory_has_nothing_to_try() -> None:
    with pytest.raises(NotImplementedError, match=r"override action\(\)"):
        ActionContract().action(as_it_should_not, None)
    with pytest.raises(NotImplementedError, match=r"override question\(\)"):
        ActionContract().question(as_it_should_not, None)


async def as_it_should_not(_: Reaction[Any]) -> None:
    raise NotImplementedError


def test_an_action_as_it_should_be_keeps_every_promise() -> None:
    assert broken(OddContract(as_it_should)) == []


@pytest.mark.parametrize(
    ("way", "promise"),
    [
        (in_other_words, "what_it_comes_to_is_the_runs_output"),
        (twice, "it_is_given_its_attempt"),
        (whatever_comes, "what_it_raises_fails_the_attempt"),
        (for_another_reason, "a_failure_keeps_its_reason"),
        (as_an_outsider, "what_it_emits_is_the_runs_and_is_there_once"),
        (in_the_background, "its_timeout_stops_it"),
        (in_the_background, "cancelling_its_run_stops_it"),
        (one_at_a_time, "two_at_once_keep_to_themselves"),
    ],
)
def test_a_promise_that_is_broken_is_noticed(way: Way, promise: str) -> None:
    assert promise in broken(OddContract(way))


def test_an_action_that_leaves_its_params_out_is_noticed() -> None:
    assert broken(OddContract(as_it_should, params=False)) == ["it_is_given_its_params"]


@pytest.mark.parametrize(
    ("ask", "broken_promises"),
    [
        (
            nobody,
            [
                "it_asks_before_its_work",
                "its_answer_has_another_process_do_its_work",
                "another_attempt_at_its_work_asks_nobody_again",
                "what_nobody_answers_in_time_is_dead_lettered",
                "cancelling_its_run_ends_its_question",
                "questions_at_once_keep_to_themselves",
            ],
        ),
        (at_each_attempt, ["another_attempt_at_its_work_asks_nobody_again"]),
        (for_ever, ["what_nobody_answers_in_time_is_dead_lettered"]),
        (
            for_nothing,
            [
                "its_answer_has_another_process_do_its_work",
                "another_attempt_at_its_work_asks_nobody_again",
                "questions_at_once_keep_to_themselves",
            ],
        ),
        (without_a_question, ["it_asks_before_its_work"]),
    ],
)
def test_an_action_that_asks_in_another_way_is_noticed(ask: WayToAsk, broken_promises: list[str]) -> None:
    assert broken(OddContract(as_it_should, ask=ask)) == broken_promises
