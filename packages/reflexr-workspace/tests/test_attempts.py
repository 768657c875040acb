import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, override

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from pydantic import BaseModel

from reflexr.core import RetryPolicy, StoredRules, run
from reflexr.workspace import (
    NewEvent,
    Reaction,
    RunFailure,
    with_params,
)

from .plant import REF, SECOND, START, Alarm, stored, stored_rules
from .reacting import IMMEDIATELY, ONCE, TTL, Bench, Gate, Script, nothing, rule


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_run_succeeds_with_what_its_action_returns(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(), actions={"page": Script({"paged": ["ada"]})}).settle()

    (done,) = await bench.runs()
    assert (done.status, done.output, done.attempt, done.started_at) == ("succeeded", {"paged": ["ada"]}, 1, START)
    assert await bench.types() == ["alarm", "rule_fired", "run_started", "run_succeeded"]


async def test_a_failed_attempt_is_made_again_after_its_back_off_by_the_storages_clock(bench: Bench) -> None:
    script = Script(OSError("no route"), "paged")
    reactor = bench.reactor(rule(), actions={"page": script})
    await bench.publish(Alarm(machine="press"))

    await reactor.settle()
    (waiting,) = await bench.runs()
    bench.clock.advance(SECOND - timedelta(microseconds=1))
    await reactor.settle()
    too_early = list(script.attempts)
    bench.clock.advance(timedelta(microseconds=1))
    await reactor.settle()

    assert (waiting.status, waiting.error, waiting.next_attempt_at) == ("retrying", "OSError: no route", START + SECOND)
    assert (too_early, script.attempts) == ([1], [1, 2])
    assert await bench.statuses() == ["succeeded"]


async def test_a_retry_without_back_off_is_due_now_so_settle_goes_on_to_the_dead_letter(bench: Bench) -> None:
    script = Script(ValueError("boom"))
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(
        rule(retry=RetryPolicy(max_attempts=3, backoff=timedelta(0))), actions={"page": script}
    ).settle()

    (dead,) = await bench.runs()
    assert (dead.status, dead.error, script.attempts) == ("dead_lettered", "ValueError: boom", [1, 2, 3])


async def test_a_permanent_failure_is_dead_lettered_at_once_with_its_reason(bench: Bench) -> None:
    script = Script(RunFailure("blocked", reason="guardrail_blocked", permanent=True))
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(), actions={"page": script}).settle()

    (dead,) = await bench.runs()
    assert (dead.status, dead.error, dead.reason) == ("dead_lettered", "blocked", "guardrail_blocked")
    assert (await bench.facts("reflexr:run_dead_lettered"))[0]["reason"] == "guardrail_blocked"


def reports(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "reflexr.workspace.reactor"]


async def test_each_failed_attempt_is_logged_once_with_its_traceback_and_what_happens_next(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    policy = RetryPolicy(max_attempts=2, backoff=SECOND)
    reactor = bench.reactor(rule(retry=policy), actions={"page": Script(OSError("no route"))})
    await bench.publish(Alarm(machine="press"))

    await reactor.settle()
    bench.clock.advance(SECOND)
    await reactor.settle()

    run_id = (await bench.runs())[0].id
    assert [(record.levelname, record.getMessage()) for record in reports(caplog)] == [
        ("WARNING", f"attempt {number} of run {run_id!r} of rule 'plant:a' in {REF} failed: {then}")
        for number, then in (
            (1, "the next attempt is at 2026-01-01T00:00:01+00:00"),
            (2, "the run is dead-lettered"),
        )
    ]
    assert caplog.text.count("OSError: no route") == caplog.text.count("Traceback") == 2


async def test_a_failure_that_is_not_recorded_is_logged_all_the_same(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def page(reaction: Reaction[None]) -> None:
        async with bench.storage.transaction(REF) as transaction:
            await transaction.save_runs([reaction.run.model_copy(update={"attempt": 2})])
        raise OSError("no route")

    await bench.publish(Alarm(machine="press"))
    reactor = bench.reactor(rule(), actions={"page": page})
    await reactor.evaluate()
    await reactor.execute()

    (report,) = reports(caplog)
    assert report.getMessage().endswith("that is not recorded, as the run has moved on or the storage failed")
    assert "OSError: no route" in caplog.text


async def test_what_succeeds_or_is_stopped_is_no_failure_to_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    reactor = bench.reactor(rule(), rule("plant:b", then=run("fine")), actions={"page": gate, "fine": nothing})
    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(reactor.serve(stop, grace=timedelta(0)))
        await gate.begun.get()
        stop.set()

    assert await bench.statuses() == ["retrying", "succeeded"]
    assert reports(caplog) == []


class Poison(BaseException):
    pass


class Mute(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("poison", [Poison("gulp"), SystemExit(3), asyncio.CancelledError("of its own"), Mute()])
async def test_whatever_an_action_raises_fails_its_attempt_and_nothing_else(
    bench: Bench, poison: BaseException
) -> None:
    async def page(reaction: Reaction[None]) -> None:
        if reaction.scope["machine"] == "press":
            raise poison

    await bench.publish(Alarm(machine="press"), Alarm(machine="saw"))

    await bench.reactor(rule(retry=ONCE), actions={"page": page}, tracer_provider=TracerProvider()).settle()

    assert await bench.statuses() == ["dead_lettered", "succeeded"]


class BrokenProcessor(SpanProcessor):
    @override
    def on_end(self, span: ReadableSpan) -> None:
        if span.name == "invoke_workflow plant:a" and (span.attributes or {})["session.id"] == "press":
            raise RuntimeError("the exporter is broken")


async def test_an_attempt_whose_tracing_breaks_breaks_no_other_and_is_found_abandoned(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BrokenProcessor())
    await (await bench.open()).publish_many([NewEvent(Alarm(machine=name), name) for name in ("press", "saw")])

    await bench.reactor(rule(retry=ONCE), tracer_provider=provider).settle()
    statuses = await bench.statuses()
    bench.clock.advance(TTL)
    await bench.reactor(rule(retry=ONCE)).settle()

    assert (statuses, "the exporter is broken" in caplog.text) == (["running", "succeeded"], True)
    first = (await bench.runs())[0]
    assert (first.status, first.reason) == ("dead_lettered", "abandoned")


async def test_an_action_that_ends_as_cancelled_though_nobody_cancelled_it_has_failed(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(), actions={"page": page}).settle()

    (failed,) = await bench.runs()
    assert (failed.status, failed.reason) == ("retrying", "cancelled")


async def interrupted_when_cancelled(_reaction: Reaction[None]) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


@pytest.mark.parametrize("page", [Script(KeyboardInterrupt()), interrupted_when_cancelled])
async def test_a_keyboard_interrupt_ends_the_process_and_the_attempt_is_found_abandoned(
    bench: Bench, page: Any
) -> None:
    def interrupted() -> None:
        loop = asyncio.new_event_loop()
        # Nobody hears of what is left of a process.
        loop.set_exception_handler(lambda _loop, _context: None)
        try:
            loop.run_until_complete(other.execute())
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    brief = rule(retry=IMMEDIATELY, timeout=timedelta(milliseconds=10))
    other = bench.reactor(brief, actions={"page": page})
    await bench.publish(Alarm(machine="press"))
    await other.evaluate()
    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(interrupted)

    assert await bench.statuses() == ["running"]
    bench.clock.advance(TTL)
    await bench.reactor(brief).settle()
    (done,) = await bench.runs()
    assert (done.status, done.attempt) == ("succeeded", 2)


@pytest.mark.parametrize("output", [object(), float("inf"), {"a": {1, 2}}])
async def test_an_output_that_is_not_json_fails_the_attempt(bench: Bench, output: object) -> None:
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(), actions={"page": Script(output)}).settle()

    (failed,) = await bench.runs()
    assert (failed.status, failed.reason) == ("retrying", "invalid_output")
    assert "Return JSON, a pydantic model or None" in str(failed.error)


async def test_an_attempt_that_takes_longer_than_the_rules_timeout_is_cancelled_and_has_failed(bench: Bench) -> None:
    gate = Gate()
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(timeout=timedelta(microseconds=1)), actions={"page": gate}).settle()

    (failed,) = await bench.runs()
    assert (failed.status, failed.reason, gate.cancelled) == ("retrying", "timeout", [failed.id])
    assert failed.error == "the attempt took longer than 0:00:00.000001"


async def test_an_action_that_cleans_up_after_its_timeout_is_not_broken_off(bench: Bench) -> None:
    cleaning, go, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def page(reaction: Reaction[None]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await go.wait()
            cleaned.set()

    await bench.publish(Alarm(machine="press"))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        reactor = bench.reactor(rule(retry=ONCE, timeout=timedelta(microseconds=1)), actions={"page": page})
        tasks.create_task(reactor.serve(stop, grace=timedelta()))
        await cleaning.wait()
        stop.set()
        for _ in range(100):
            await asyncio.sleep(0)
        go.set()
        await cleaned.wait()

    assert await bench.statuses() == ["dead_lettered"]


async def test_an_action_that_makes_light_of_its_timeout_has_still_taken_too_long(bench: Bench) -> None:
    async def page(reaction: Reaction[None]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyhow"
        raise AssertionError

    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(timeout=timedelta(microseconds=1)), actions={"page": page}).settle()

    assert [run.reason for run in await bench.runs()] == ["timeout"]


async def test_a_timeout_of_the_actions_own_is_no_timeout_of_the_rule(bench: Bench) -> None:
    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(timeout=timedelta(hours=1)), actions={"page": Script(TimeoutError("of mine"))}).settle()

    assert [(run.error, run.reason) for run in await bench.runs()] == [("TimeoutError: of mine", None)]


class Thread(BaseModel):
    thread: str


async def test_params_reach_the_action_as_its_model(bench: Bench) -> None:
    async def notify(reaction: Reaction[None], params: Thread) -> dict[str, bool | str]:
        return {"thread": params.thread, "same": reaction.params is params}

    await bench.publish(Alarm(machine="press"))

    await bench.reactor(rule(then=run("notify", thread="t1")), actions={"notify": with_params(notify, Thread)}).settle()

    assert [done.output for done in await bench.runs()] == [{"thread": "t1", "same": True}]


def allowed(*_: object) -> bool:
    return True


async def wants_params(reaction: Reaction[None], params: Thread) -> None:
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("params", "actions", "reason"),
    [
        ({}, {}, "unknown_action"),
        ({"page": Thread}, {"page": with_params(wants_params, Thread)}, "invalid_params"),
    ],
)
async def test_a_stored_rule_whose_action_is_gone_or_wants_other_params_fails_for_good(
    bench: Bench, params: Any, actions: Any, reason: str
) -> None:
    workspace = await bench.open(stored_rules=stored_rules())
    await workspace.install_rule(stored())
    await workspace.publish(Alarm(machine="press"))
    later = StoredRules(allow=allowed, actions=params, namespaces=frozenset({"chat"}))

    await bench.reactor(stored_rules=later, actions=actions).settle()

    assert [(run.status, run.reason, run.attempt) for run in await bench.runs()] == [("dead_lettered", reason, 1)]


# --- Run contexts


async def test_the_run_context_surrounds_each_attempt_and_sees_what_the_action_raises(bench: Bench) -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def context(reaction: Reaction[Any]) -> AsyncGenerator[None]:
        seen.append(("begin", reaction.attempt))
        try:
            yield
        except OSError as error:
            seen.append(("raised", str(error)))
            raise
        seen.append("end")

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(
        rule(retry=IMMEDIATELY), actions={"page": Script(OSError("no route"), None)}, run_context=context
    ).settle()

    assert seen == [("begin", 1), ("raised", "no route"), ("begin", 2), "end"]


async def test_a_run_context_that_raises_fails_the_attempt(bench: Bench) -> None:
    @asynccontextmanager
    async def context(reaction: Reaction[Any]) -> AsyncGenerator[None]:
        raise ValueError("no backend")
        yield

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), run_context=context).settle()

    assert [run.error for run in await bench.runs()] == ["ValueError: no backend"]


async def test_a_failure_that_the_run_context_swallows_is_one_all_the_same(bench: Bench) -> None:
    @asynccontextmanager
    async def context(reaction: Reaction[Any]) -> AsyncGenerator[None]:
        try:
            yield
        except OSError:
            return

    await bench.publish(Alarm(machine="press"))
    await bench.reactor(rule(), actions={"page": Script(OSError("no route"))}, run_context=context).settle()

    assert [run.error for run in await bench.runs()] == ["OSError: no route"]
