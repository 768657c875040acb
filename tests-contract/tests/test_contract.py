import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import override

import pytest

from reflexr.contracts import Contract, guarantee


class Numbers(Contract[int]):
    @override
    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[int]:
        yield 42

    @guarantee()
    async def test_a_number_is_what_it_is(self, trial: int) -> None:
        """A number is what it is."""
        assert trial == 42

    @guarantee()
    async def test_a_number_is_another(self, trial: int) -> None:
        assert trial == 43

    @guarantee()
    async def test_somebody_calls_it_off(self, trial: int) -> None:
        raise KeyboardInterrupt

    @guarantee()
    async def test_it_is_cancelled(self, trial: int) -> None:
        raise asyncio.CancelledError


def test_a_guarantee_is_a_test_that_asks_for_no_fixture() -> None:
    assert Numbers.test_a_number_is_what_it_is.__doc__ == "A number is what it is."
    assert Numbers.test_a_number_is_what_it_is.__name__ == "test_a_number_is_what_it_is"
    Numbers().test_a_number_is_what_it_is()


def test_a_guarantee_fails_with_what_its_check_raised() -> None:
    with pytest.raises(AssertionError):
        Numbers().test_a_number_is_another()


def test_who_calls_a_run_off_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        Numbers().test_somebody_calls_it_off()


def test_a_cancellation_is_passed_on() -> None:
    with pytest.raises(asyncio.CancelledError):
        Numbers().test_it_is_cancelled()


def test_a_contract_with_nothing_to_try_says_so() -> None:
    class Nothing(Contract[int]):
        @guarantee()
        async def test_something(self, trial: int) -> None:
            assert trial

    with pytest.raises(NotImplementedError, match=r"Nothing has nothing to try: override trial\(\)"):
        Nothing().test_something()
