from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflexr.core.commands import Publish
from reflexr.core.deltas import Delta
from reflexr.core.envelopes import MAX_SEQ, Envelope
from reflexr.core.frames import (
    PROTOCOL,
    ClientFrame,
    CommandFrame,
    CommandRejected,
    CommandSucceeded,
    DeltaFrame,
    ErrorFrame,
    EventFrame,
    Hello,
    ReplayComplete,
    Resumption,
    ServerFrame,
    Welcome,
    read_client_frame,
    read_server_frame,
    resume,
    write_frame,
)
from reflexr.core.outcomes import Published
from reflexr.core.rejections import NotFoundRejection, UnsupportedProtocol, ValidationFailed, ValidationFailedRejection

ENVELOPE: Final = Envelope.model_validate(
    {
        "seq": 1,
        "id": "evt_1",
        "ts": "2026-01-01T00:00:00Z",
        "workspace_id": "prod",
        "actor": {"kind": "user", "id": "ada"},
        "correlation_id": "evt_1",
        "event": {"type": "ops:error", "n": 1},
    }
)
DELTA: Final = Delta(
    run_id="fir_1", rule="ops:a", attempt=2, number=7, kind="tool_call", part=3, text='{"n": ', tool="count", lost=4
)
CLIENT: Final[list[ClientFrame]] = [
    Hello(protocol=PROTOCOL),
    Hello(protocol=PROTOCOL, resume_after_seq=MAX_SEQ, types=("ops:error",)),
    Hello(protocol=PROTOCOL, from_head=True),
    Hello(protocol=PROTOCOL, deltas=True),
    CommandFrame(command_id="c1", command=Publish(event={"type": "ops:error"})),
]
SERVER: Final[list[ServerFrame]] = [
    Welcome(workspace_id="prod", head_seq=7, reset=True),
    EventFrame(envelope=ENVELOPE),
    ReplayComplete(up_to_seq=7),
    CommandSucceeded(command_id="c1", outcome=Published(seq=8, id="evt_8", duplicate=False)),
    CommandRejected(command_id="c1", rejection=NotFoundRejection(message="no such run")),
    ErrorFrame(rejection=ValidationFailedRejection(message="no frame", errors=("type: Field required",))),
    DeltaFrame(delta=DELTA),
]


@pytest.mark.parametrize("frame", CLIENT, ids=str)
def test_a_clients_frame_comes_back_as_it_was(frame: ClientFrame) -> None:
    assert read_client_frame(write_frame(frame)) == frame


@pytest.mark.parametrize("frame", SERVER, ids=lambda frame: type(frame).__name__)
def test_a_servers_frame_comes_back_as_it_was(frame: ServerFrame) -> None:
    assert read_server_frame(write_frame(frame).encode()) == frame


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (SERVER[0], '{"type":"welcome","workspace_id":"prod","head_seq":7,"reset":true}'),
        (SERVER[2], '{"type":"replay_complete","up_to_seq":7}'),
        (
            SERVER[3],
            (
                '{"type":"command_result","command_id":"c1","ok":true,'
                '"outcome":{"type":"published","seq":8,"id":"evt_8","duplicate":false}}'
            ),
        ),
        (
            SERVER[4],
            (
                '{"type":"command_result","command_id":"c1","ok":false,'
                '"rejection":{"type":"not_found","message":"no such run"}}'
            ),
        ),
        (
            SERVER[6],
            (
                '{"type":"delta","delta":{"run_id":"fir_1","rule":"ops:a","attempt":2,"number":7,"kind":"tool_call",'
                '"part":3,"text":"{\\"n\\": ","tool":"count","lost":4}}'
            ),
        ),
    ],
    ids=["welcome", "replay_complete", "success", "refusal", "delta"],
)
def test_a_frame_is_written_as_the_protocol_says(frame: ServerFrame, text: str) -> None:
    assert write_frame(frame) == text


def test_an_event_frame_holds_the_envelope_as_the_log_has_it() -> None:
    assert write_frame(EventFrame(envelope=ENVELOPE)) == f'{{"type":"event","envelope":{ENVELOPE.to_json()}}}'


def test_a_hello_that_asks_for_no_deltas_is_one_that_an_older_server_reads() -> None:
    assert "deltas" not in write_frame(Hello(protocol=PROTOCOL))
    assert '"deltas":true' in write_frame(Hello(protocol=PROTOCOL, deltas=True))


def test_a_client_meets_a_newer_server_and_ignores_what_it_does_not_know() -> None:
    frame = read_server_frame('{"type":"replay_complete","up_to_seq":7,"took":"PT1S"}')

    assert frame == ReplayComplete(up_to_seq=7)


def test_a_server_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValidationFailed) as refused:
        read_client_frame('{"type":"hello","protocol":"reflexr.v1","since":3}')

    assert isinstance(refused.value.rejection, ValidationFailedRejection)
    assert refused.value.rejection.errors == ("hello.since: Extra inputs are not permitted",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"hello"',
        "{}",
        '{"type":"goodbye"}',
        '{"type":"hello"}',
        '{"type":"hello","protocol":1}',
        '{"type":"hello","protocol":"reflexr.v1","types":[]}',
        '{"type":"hello","protocol":"reflexr.v1","types":["error"]}',
        '{"type":"hello","protocol":"reflexr.v1","from_head":"yes"}',
        '{"type":"hello","protocol":"reflexr.v1","from_head":1}',
        '{"type":"hello","protocol":"reflexr.v1","deltas":1}',
        '{"type":"hello","protocol":"reflexr.v1","deltas":"true"}',
        '{"type":"hello","protocol":"reflexr.v1","resume_after_seq":-1}',
        '{"type":"hello","protocol":"reflexr.v1","resume_after_seq":9223372036854775808}',
        '{"type":"hello","protocol":"reflexr.v1","resume_after_seq":"3"}',
        '{"type":"command","command_id":"","command":{"type":"retry_run","run_id":"r"}}',
        '{"type":"command","command_id":"c","command":null}',
        '{"type":"hello","protocol":"\\ud800"}',
        '{"type":"hello","type":"hello","protocol":"reflexr.v1"}',
        '{"type":"command","command_id":"c","command":{"type":"skip_run","run_id":"a","run_id":"b"}}',
        "[" * 100_000,
        b"\xff\xfe",
        "\ud800",
    ],
)
def test_what_is_no_frame_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValidationFailed, match="the frame is none that a client sends") as refused:
        read_client_frame(text)

    assert isinstance(refused.value.rejection, ValidationFailedRejection)
    assert refused.value.rejection.errors


@pytest.mark.parametrize(
    "text", ['{"type":"hello","protocol":"reflexr.v1"}', '{"type":"command_result","command_id":"c","ok":1}', "{"]
)
def test_what_no_server_sends_is_refused(text: str) -> None:
    with pytest.raises(ValidationFailed, match="the frame is none that a server sends"):
        read_server_frame(text)


@given(st.binary() | st.text())
def test_no_text_makes_reading_fail_in_any_other_way(text: str | bytes) -> None:
    with pytest.raises(ValidationFailed):
        read_client_frame(text)


@given(after=st.integers(0, MAX_SEQ), head=st.integers(0, MAX_SEQ))
def test_a_client_resumes_after_its_place_or_is_reset_when_it_is_ahead(after: int, head: int) -> None:
    resumption = resume(Hello(protocol=PROTOCOL, resume_after_seq=after), head)

    assert resumption.up_to_seq == head
    assert resumption.reset is (after > head)
    assert resumption.after_seq == (0 if after > head else after)


def test_a_client_that_wants_only_what_comes_begins_at_the_head() -> None:
    hello = Hello(protocol=PROTOCOL, from_head=True)

    assert resume(hello, 7) == Resumption(after_seq=7, up_to_seq=7, reset=False)
    assert resume(hello, 0) == Resumption(after_seq=0, up_to_seq=0, reset=False)


def test_a_client_that_resumes_cannot_ask_for_the_head_and_miss_something() -> None:
    with pytest.raises(ValidationFailed, match="resume_after_seq is 3 and from_head is true"):
        resume(Hello(protocol=PROTOCOL, resume_after_seq=3, from_head=True), 7)


@pytest.mark.parametrize("protocol", ["reflexr.v2", "", "REFLEXR.V1", "reflexr.v1\n"])
def test_a_client_of_another_protocol_is_refused(protocol: str) -> None:
    with pytest.raises(UnsupportedProtocol, match=r"is not spoken here: speak 'reflexr\.v1'"):
        resume(Hello(protocol=protocol), 7)
