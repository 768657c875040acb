"""Each promise of a storage is noticed when it is broken, and it alone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import ClassVar, override

import pytest
from hypothesis import Phase, settings

from reflexr.contracts import Feature, StorageContract
from reflexr.workspace import Clock, ManualClock, Storage

from .breakages import BROKEN_LOGS
from .breakages_of_work import BROKEN_WORK
from .broken import Broken
from .broken_appends import BROKEN_APPENDS
from .broken_pauses import BROKEN_PAUSES
from .dictionary_storage import Database, DictionaryStorage
from .timeless import TimelessLoop

BROKEN = (*BROKEN_LOGS, *BROKEN_APPENDS, *BROKEN_WORK, *BROKEN_PAUSES)
MODEL = "test_a_storage_answers_as_a_model_does"


class Contract(StorageContract):
    """The whole contract, over a storage that a test names."""

    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    large: ClassVar[int] = 101

    def __init__(self, broken: Broken) -> None:
        self.broken = broken

    @override
    @asynccontextmanager
    async def storage(self, clock: ManualClock) -> AsyncGenerator[Storage]:
        yield self.broken.open(Database(), clock)

    @override
    @asynccontextmanager
    async def beside(self, storage: Storage, clock: ManualClock) -> AsyncGenerator[Storage]:
        assert isinstance(storage, DictionaryStorage)
        yield self.broken.open(storage.database, clock)

    @override
    def event_loop(self) -> asyncio.AbstractEventLoop:
        return TimelessLoop()

    @override
    def hypothesis(self) -> settings:
        # A fault that was found is enough: nobody reads the shortest way to it.
        return settings(super().hypothesis(), phases=[Phase.generate], max_examples=100, derandomize=True)


class Thorough(Contract):
    """Compares with the model until a fault is found, or for long enough that none was to be found.

    Which sequences are tried depends on the modules that were imported before, whose constants Hypothesis draws from:
    so 100 of them may miss what is found each time elsewhere.
    """

    @override
    def hypothesis(self) -> settings:
        return settings(super().hypothesis(), max_examples=1_000)


def guarantees() -> list[str]:
    return [name for name in dir(Contract) if name.startswith("test_")]


def fails(broken: Broken, guarantee: str, contract: type[Contract] = Contract) -> bool:
    try:
        getattr(contract(broken), guarantee)()
    except BaseException as error:
        # What pytest raises to fail a test is no Exception.
        return not isinstance(error, KeyboardInterrupt)
    return False


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.what)
def test_a_broken_promise_is_noticed_and_no_other_is_blamed(broken: Broken) -> None:
    assert {name for name in guarantees() if name != MODEL and fails(broken, name)} == broken.guarantees


def test_every_guarantee_is_one_that_some_storage_breaks() -> None:
    broken = {guarantee for one in BROKEN for guarantee in one.guarantees}
    assert broken == set(guarantees()) - {MODEL}


def test_a_storage_that_cannot_be_opened_fails_with_what_kept_it_from_that() -> None:
    def refuse(database: Database, clock: Clock) -> DictionaryStorage:
        raise ConnectionError("the server is down")

    with pytest.raises(ConnectionError, match="the server is down"):
        getattr(Contract(Broken("cannot be opened", refuse)), MODEL)()


def test_a_storage_that_breaks_nothing_fails_nothing() -> None:
    whole = Broken("breaks nothing", DictionaryStorage)
    assert [name for name in guarantees() if fails(whole, name)] == []


@pytest.mark.parametrize(
    "what",
    [
        "ends no pause",
        "finds committed runs",
        "gives back for others",
        "looks at no new rule",
        "moves cursors back",
        "saves any version",
        "takes no types for all",
        "ticks everywhere",
    ],
)
def test_the_model_notices_what_it_can_know(what: str) -> None:
    (broken,) = (one for one in BROKEN if one.what == what)
    assert fails(broken, MODEL, Thorough)
