"""What a surface promises of streams: the past, then what happens, each envelope once and in order."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from reflexr.contracts.adapters import Feature
from reflexr.contracts.comparisons import first_difference
from reflexr.contracts.contract import guarantee
from reflexr.contracts.samples import WORKSPACE
from reflexr.contracts.surface_application import BESIDE, ELSEWHERE, ORDERS, Ordered, Returned
from reflexr.contracts.surface_commands import ORDER, VALUES
from reflexr.contracts.surface_refusals import publish
from reflexr.contracts.surface_trials import JsonObject, StreamClosed, SurfaceGuarantees, SurfaceTrial, told
from reflexr.contracts.trials import together

BAD_HELLO: Final = 4400
"""The close code of a stream that began with no hello."""

_RETURNED: Final = publish(type=Returned.event_type)


class StreamingContract(SurfaceGuarantees):
    """A stream from its hello to its end."""

    # --- What is sent

    @guarantee(Feature.STREAM)
    async def test_a_stream_sends_the_past_and_then_what_happens(self, trial: SurfaceTrial) -> None:
        """A stream says welcome, sends the log, says that this is all, and sends what happens, as it is in the log."""
        await trial.run_id("succeeded")
        past = await trial.log()
        async with trial.streamed() as stream:
            welcome = {"type": "welcome", "workspace_id": WORKSPACE.workspace_id, "head_seq": len(past), "reset": False}
            assert stream.welcome == welcome
            assert (stream.replayed, stream.up_to_seq) == (past, len(past))
            await trial.run_id("dead_lettered")
            happened = (await trial.log())[len(past) :]
            assert await stream.live(len(happened)) == happened

    @guarantee(Feature.STREAM)
    async def test_events_are_streamed_as_they_are(self, trial: SurfaceTrial) -> None:
        """A stream changes no value, in its replay and after: texts, numbers of any size, and the order of keys."""
        await trial.publish(Ordered(details=VALUES))
        async with trial.streamed() as stream:
            await trial.publish(Ordered(details=VALUES))
            for envelope in (*stream.replayed, *await stream.live(1)):
                assert repr(envelope["event"]["details"]) == repr(VALUES)

    @guarantee(Feature.STREAM)
    async def test_a_stream_of_a_new_workspace_waits_for_its_first_event(self, trial: SurfaceTrial) -> None:
        """A stream of a workspace without a log has nothing to replay, and sends what is published first."""
        async with trial.streamed() as stream:
            assert (stream.welcome["head_seq"], stream.replayed, stream.up_to_seq) == (0, [], 0)
            await trial.publish()
            assert await stream.live(1) == await trial.log()

    @guarantee(Feature.STREAM)
    async def test_a_stream_resumes_after_a_place(self, trial: SurfaceTrial) -> None:
        """A stream that resumes after a place sends what came after it, and nothing of what was up to it."""
        await trial.publish(*[Ordered()] * 5)
        for after in (1, 4, 5):
            async with trial.streamed(resume_after_seq=after) as stream:
                assert (stream.welcome["head_seq"], stream.welcome["reset"]) == (5, False)
                assert (_seqs(stream.replayed), stream.up_to_seq) == ([*range(after + 1, 6)], 5)
        async with trial.streamed(resume_after_seq=5) as stream:
            await trial.publish()
            assert _seqs(await stream.live(1)) == [6]

    @guarantee(Feature.STREAM)
    async def test_a_stream_from_the_head_sends_nothing_of_the_past(self, trial: SurfaceTrial) -> None:
        """A stream that begins at the head replays nothing, and sends what comes next."""
        await trial.publish(*[Ordered()] * 3)
        async with trial.streamed(from_head=True) as stream:
            assert (stream.welcome["head_seq"], stream.replayed, stream.up_to_seq) == (3, [], 3)
            await trial.publish()
            assert _seqs(await stream.live(1)) == [4]

    @guarantee(Feature.STREAM)
    async def test_a_stream_that_is_ahead_of_the_log_is_reset(self, trial: SurfaceTrial) -> None:
        """Whoever resumes after a place that the log does not have is told of a reset, and is sent everything."""
        await trial.publish(*[Ordered()] * 3)
        async with trial.streamed(resume_after_seq=4) as stream:
            assert (stream.welcome["reset"], stream.welcome["head_seq"]) == (True, 3)
            assert (_seqs(stream.replayed), stream.up_to_seq) == ([1, 2, 3], 3)
            await trial.publish()
            assert _seqs(await stream.live(1)) == [4]

    @guarantee(Feature.STREAM)
    async def test_a_stream_sends_the_types_that_it_was_asked_for(self, trial: SurfaceTrial) -> None:
        """A stream with `types` sends those alone, of the past and of what happens, and is complete to the head."""
        events = [ORDER, _RETURNED] * 2
        for event in events:
            await trial.done(event)
        async with trial.streamed(types=[Returned.event_type, "contract_shop:unheard_of"]) as stream:
            assert (_seqs(stream.replayed), stream.up_to_seq) == ([2, 4], 4)
            for event in events:
                await trial.done(event)
            assert _seqs(await stream.live(2)) == [6, 8]
        async with trial.streamed(types=["contract_shop:unheard_of"]) as stream:
            assert (stream.replayed, stream.up_to_seq) == ([], 8)

    @guarantee(Feature.STREAM)
    async def test_a_long_log_is_sent_whole(self, trial: SurfaceTrial) -> None:
        """A log of any length is sent from its first envelope to its last, each once and in order."""
        await trial.publish(*[Ordered()] * self.large)
        async with trial.streamed() as stream:
            assert first_difference(_seqs(stream.replayed), range(1, self.large + 1)) is None
            for seq in range(self.large, self.large + 500, 50):
                await trial.publish(*[Ordered()] * 50)
                assert _seqs(await stream.live(50)) == [*range(seq + 1, seq + 51)]

    @guarantee(Feature.STREAM)
    async def test_what_is_published_while_a_stream_begins_is_sent_once(self, trial: SurfaceTrial) -> None:
        """Whatever is published while a stream begins is sent once and in order, in its replay or after it."""
        number = 100

        async def follow(resume: int) -> list[int]:
            async with trial.streamed(resume_after_seq=resume) as stream:
                missing = number - resume - len(stream.replayed)
                assert _seqs(stream.replayed) == [*range(resume + 1, stream.up_to_seq + 1)]
                return _seqs(stream.replayed) + _seqs(await stream.live(missing))

        async def fill() -> list[int]:
            for _ in range(number - 1):
                await trial.publish()
            return []

        await trial.publish()
        seqs = await together([fill(), *(follow(resume) for resume in (0, 0, 1))])
        assert seqs[1:] == [[*range(1, number + 1)]] * 2 + [[*range(2, number + 1)]]

    @guarantee(Feature.STREAM)
    async def test_every_stream_gets_everything(self, trial: SurfaceTrial) -> None:
        """Each of several streams gets everything; one that ends takes nothing from another."""
        async with trial.streamed() as staying:
            async with trial.streamed() as leaving:
                await trial.publish()
                assert await staying.live(1) == await leaving.live(1) == await trial.log()
            await trial.publish()
            assert _seqs(await staying.live(1)) == [2]
        async with trial.streamed(resume_after_seq=1) as again:
            assert _seqs(again.replayed) == [2]

    # --- What runs say while they are at work

    @guarantee(Feature.STREAM)
    async def test_a_stream_that_asks_for_deltas_is_sent_what_runs_say(self, trial: SurfaceTrial) -> None:
        """A stream with `deltas` sends what a run says, in its order and beside the events, which are as without."""
        trial.act.says = ["Pack", "ing"]
        async with trial.streamed(deltas=True) as stream:
            run_id = await trial.run_id("succeeded")
            shared = {"run_id": run_id, "rule": ORDERS, "attempt": 1, "kind": "text", "part": 0, "tool": None}
            assert await stream.deltas(2) == [
                {**shared, "number": 1, "text": "Pack", "lost": 0},
                {**shared, "number": 2, "text": "ing", "lost": 0},
            ]
            log = await trial.log()
            assert await stream.live(len(log)) == log

    @guarantee(Feature.STREAM)
    async def test_a_stream_that_asks_for_no_deltas_is_sent_none(self, trial: SurfaceTrial) -> None:
        """A stream without `deltas`, or with `deltas` false, sends events alone, whatever runs say."""
        trial.act.says = ["Packing"]
        fields: dict[str, Any]
        for fields in ({}, {"deltas": False}):
            past = await trial.log()
            async with trial.streamed(**fields) as stream:
                for _ in range(2):
                    await trial.run_id("succeeded")
                happened = (await trial.log())[len(past) :]
                assert await stream.live(len(happened)) == happened

    @guarantee(Feature.STREAM)
    async def test_the_deltas_of_a_stream_are_those_of_its_workspace(self, trial: SurfaceTrial) -> None:
        """A stream with `deltas` sends nothing of what is said in other workspaces, of its tenant or of another."""
        async with trial.streamed(deltas=True) as stream:
            for workspace in (BESIDE, ELSEWHERE, WORKSPACE):
                trial.act.says = [workspace.tenant_id, workspace.workspace_id]
                await trial.run_id("succeeded", workspace)
            assert [delta["text"] for delta in await stream.deltas(2)] == list(trial.act.says)

    # --- Commands in between

    @guarantee(Feature.STREAM)
    async def test_a_command_on_a_stream_is_answered_there(self, trial: SurfaceTrial) -> None:
        """A command on a stream is answered on it under its id, and what it did is sent as what others do."""
        async with trial.streamed() as stream:
            result = await stream.result({**ORDER, "id": "e1"}, "c1")
            assert result == {
                "type": "command_result",
                "command_id": "c1",
                "ok": True,
                "outcome": {"type": "published", "seq": 1, "id": "e1", "duplicate": False},
            }
            assert await stream.live(1) == await trial.log()

    @guarantee(Feature.STREAM)
    async def test_a_refused_command_on_a_stream_is_answered_there(self, trial: SurfaceTrial) -> None:
        """A command on a stream that is refused is answered with why, under its id, and the stream goes on."""
        async with trial.streamed() as stream:
            result = await stream.result({"type": "retry_run", "run_id": "nobody's"}, "c1")
            assert (result["ok"], told(result["rejection"])["type"]) == (False, "not_found")
            assert (await stream.result(ORDER, "c2"))["ok"] is True

    @guarantee(Feature.STREAM)
    async def test_commands_on_a_stream_are_carried_out_in_order(self, trial: SurfaceTrial) -> None:
        """Commands that are sent on a stream without waiting are carried out in their order, each answered once."""
        ids = [f"c{number}" for number in range(20)]
        async with trial.streamed() as stream:
            for command_id in ids:
                await stream.command({**ORDER, "id": command_id}, command_id)
            results = await stream.results(len(ids))
            assert [results[command_id]["outcome"]["seq"] for command_id in ids] == [*range(1, len(ids) + 1)]
            assert await stream.live(len(ids)) == await trial.log()

    @guarantee(Feature.STREAM)
    async def test_a_command_that_takes_long_holds_up_no_event(self, trial: SurfaceTrial) -> None:
        """What happens is sent while a command of the same stream is carried out."""
        hold = trial.permissions.hold("reflexr:retry_run")
        async with trial.streamed() as stream:
            await stream.command({"type": "retry_run", "run_id": "nobody's"}, "c1")
            await hold.reached.wait()
            await trial.publish()
            assert _seqs(await stream.live(1)) == [1]
            hold.let_go()
            assert set(await stream.results(1)) == {"c1"}

    @guarantee(Feature.STREAM)
    async def test_a_frame_that_cannot_be_read_is_an_error(self, trial: SurfaceTrial) -> None:
        """A frame that cannot be read is answered with an `error`, which says why, and the stream goes on."""
        async with trial.streamed() as stream:
            for number, text in enumerate(_unreadable()):
                assert (await stream.error(text))["type"] == "validation_failed", text[:80]
                assert await trial.log() == (await trial.log())[:number]
                assert (await stream.result(ORDER, f"c{number}"))["ok"] is True
            assert _seqs(await stream.live(len(_unreadable()))) == [*range(1, len(_unreadable()) + 1)]

    # --- What a stream cannot begin with

    @guarantee(Feature.STREAM)
    async def test_another_protocol_is_not_spoken(self, trial: SurfaceTrial) -> None:
        """A stream in another protocol is `unsupported_protocol`, and closed with 4400."""
        for protocol in ("reflexr.v2", "", "REFLEXR.V1"):
            assert await _refused(trial, {**trial.hello(), "protocol": protocol}) == "unsupported_protocol"

    @guarantee(Feature.STREAM)
    async def test_a_bad_hello_is_refused(self, trial: SurfaceTrial) -> None:
        """A stream that begins with no hello, or one that is not as it has to be, is refused and closed with 4400."""
        for hello in (
            {},
            {"type": "hello"},
            {"type": "command", "command_id": "c1", "command": ORDER},
            trial.hello(unknown=1),
            trial.hello(protocol=1),
            trial.hello(resume_after_seq=-1),
            trial.hello(resume_after_seq=2**63),
            trial.hello(resume_after_seq="1"),
            trial.hello(resume_after_seq=True),
            trial.hello(resume_after_seq=1.5),
            trial.hello(resume_after_seq=1, from_head=True),
            trial.hello(from_head="yes"),
            trial.hello(from_head=1),
            trial.hello(deltas="yes"),
            trial.hello(deltas=1),
            trial.hello(types=[]),
            trial.hello(types=["ordered"]),
            trial.hello(types=Ordered.event_type),
            trial.hello(types=["contract_shop:\ud800"]),
        ):
            assert await _refused(trial, hello) == "validation_failed", hello
        assert await trial.log() == []


async def _refused(trial: SurfaceTrial, hello: JsonObject) -> str:
    """Opens a stream that is refused, and returns the rejection's type."""
    async with trial.surface().stream(hello) as stream:
        frame = await stream.receive()
        assert frame["type"] == "error", frame
        with pytest.raises(StreamClosed) as closed:
            await stream.receive()
    assert closed.value.code == BAD_HELLO
    return told(frame["rejection"])["type"]


def _seqs(envelopes: Sequence[JsonObject]) -> list[int]:
    return [envelope["seq"] for envelope in envelopes]


def _unreadable() -> list[str]:
    def frame(**fields: Any) -> str:
        return json.dumps({"type": "command", "command_id": "bad", "command": ORDER, **fields})

    return [
        "",
        "publish",
        "[]",
        "null",
        "{}",
        '{"type": "command"',
        '{"type": "unheard_of"}',
        '{"type": "welcome", "workspace_id": "w", "head_seq": 0, "reset": false}',
        frame(unknown=1),
        frame(command_id=None),
        frame(command_id=""),
        frame(command_id="x" * 256),
        frame(command_id="a\0b"),
        frame(command_id="\ud800"),
        frame(command={"type": "unheard_of"}),
        frame(command={**ORDER, "unknown": 1}),
        frame(command=publish(details={"n": float("nan")})),
        frame().replace(Ordered.event_type, f'{Ordered.event_type}", "amount": {"1" * 5_000}, "x": "'),
        "[" * 100_000,
        frame().replace('"bad"', '"bad", "command": ' + '{"in":' * 100_000),
    ]
