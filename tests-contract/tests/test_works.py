"""Functions keep the contract of actions, and each of its promises is noticed when it is broken."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, override

import pytest
from pydantic import BaseModel

from reflexr.contracts import ActionContract, Work
from reflexr.workspace import Action, ActionFunction, FunctionAction, Output, Reaction, with_params

from .timeless import TimelessLoop


class TestFunctions(ActionContract):
    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any] | ActionFunction[Any]:
        async def act(reaction: Reaction[Any]) -> Output:
            return await work(reaction)

        async def act_with(reaction: Reaction[Any], given: BaseModel) -> Output:
            assert reaction.params is given
            return await work(reaction)

        return act if params is None else with_params(act_with, params)


type Way = Callable[[Work, Reaction[Any]], Awaitable[Output]]
"""How an action goes about its work."""


class OddContract(ActionContract):
    """Over actions that go about their work in a way of their own."""

    def __init__(self, way: Way, *, params: bool = True) -> None:
        self._way = way
        self._params = params

    @override
    def action(self, work: Work, params: type[BaseModel] | None) -> Action[Any]:
        return FunctionAction("act", partial(_go, self._way, work), params if self._params else None)

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()


async def _go(way: Way, work: Work, reaction: Reaction[Any]) -> Output:
    return await way(work, reaction)


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
