from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncall.events import LoginAccepted, LoginFailed
from oncall.sshd import Attempts, attempts, visible
from oncall.syslog import Record


def said(message: str, program: str = "sshd", host: str = "gate") -> Attempts | None:
    return attempts(Record(datetime(2025, 3, 3, tzinfo=UTC), host, program, message))


def failed(message: str) -> LoginFailed:
    found = said(message)
    assert found is not None
    assert found.times == 1
    assert isinstance(found.event, LoginFailed)
    return found.event


def test_a_refused_password_is_a_failure() -> None:
    assert said("Failed password for root from 192.0.2.1 port 38926 ssh2") == Attempts(
        LoginFailed(address="192.0.2.1", port=38926, user="root", method="password", host="gate", user_exists=True), 1
    )


def test_a_user_that_does_not_exist_is_told_apart() -> None:
    assert failed("Failed password for invalid user bob from 192.0.2.1 port 1 ssh2").user_exists is False
    assert failed("Failed password for illegal user bob from 192.0.2.1 port 1 ssh2").user == "bob"


@pytest.mark.parametrize(
    ("message", "user"),
    [
        ("Failed password for invalid user  from 192.0.2.1 port 1 ssh2", ""),
        ("Failed password for invalid user  0101 from 192.0.2.1 port 1 ssh2", " 0101"),
        ("Failed password for a from b from 192.0.2.1 port 1 ssh2", "a from b"),
        ("Failed password for DOMAIN\\jo doe from 192.0.2.1 port 1 ssh2", "DOMAIN\\jo doe"),
        ("Failed password for \x1b[2Jroot from 192.0.2.1 port 1 ssh2", "\\x1b[2Jroot"),
        ("Failed password for r\u202eoot from 192.0.2.1 port 1", "r\\u202eoot"),
        ("Failed password for zoë from 192.0.2.1 port 1 ssh2 [preauth] ", "zoë"),
    ],
)
def test_a_user_has_whatever_name_was_typed(message: str, user: str) -> None:
    assert failed(message).user == user


def test_a_name_cannot_pass_for_another_address() -> None:
    event = failed("Failed password for invalid user x from 198.51.100.9 port 22 ssh2 from 192.0.2.1 port 1 ssh2")
    assert (event.user, event.address) == ("x from 198.51.100.9 port 22 ssh2", "192.0.2.1")


@pytest.mark.parametrize("method", ["password", "keyboard-interactive/pam", "challenge-response"])
def test_every_guess_of_a_secret_counts(method: str) -> None:
    assert failed(f"Failed {method} for root from 192.0.2.1 port 1 ssh2").method == method


@pytest.mark.parametrize("method", ["none", "publickey", "hostbased", "gssapi-with-mic"])
def test_what_guesses_no_secret_is_no_failure(method: str) -> None:
    assert said(f"Failed {method} for root from 192.0.2.1 port 1 ssh2") is None


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("UNKNOWN", "UNKNOWN"),
        ("a\x07b", "a\\x07b"),
    ],
)
def test_an_address_has_one_spelling(written: str, address: str) -> None:
    assert failed(f"Failed password for root from {written} port 1 ssh2").address == address


@pytest.mark.parametrize(
    ("message", "method"),
    [
        ("Accepted password for alice from 192.0.2.1 port 50122 ssh2", "password"),
        ("Accepted publickey for alice from 192.0.2.1 port 50122 ssh2: RSA SHA256:9vKq from 198.51.100.1", "publickey"),
        ("Accepted keyboard-interactive/pam for alice from 192.0.2.1 port 50122", "keyboard-interactive/pam"),
    ],
)
def test_whoever_gets_in_is_accepted(message: str, method: str) -> None:
    event = LoginAccepted(address="192.0.2.1", port=50122, user="alice", method=method, host="gate")
    assert said(message) == Attempts(event, 1)


def test_a_repeated_message_is_as_many_events() -> None:
    repeated = said("message repeated 5 times: [ Failed password for root from 192.0.2.1 port 1 ssh2]")
    assert repeated is not None
    assert repeated.times == 5
    assert repeated.event == failed("Failed password for root from 192.0.2.1 port 1 ssh2")


@pytest.mark.parametrize("program", ["sshd-session", "sshd-auth"])
def test_the_children_of_sshd_speak_for_it(program: str) -> None:
    assert said("Accepted password for alice from 192.0.2.1 port 1 ssh2", program) is not None


@pytest.mark.parametrize(
    ("message", "program"),
    [
        ("Failed password for root from 192.0.2.1 port 1 ssh2", "su"),
        ("Failed password for root", "sshd"),
        ("Accepted nothing", "sshd"),
        ("Failed password for root from 192.0.2.1 port 123456 ssh2", "sshd"),
        ("Invalid user Failed password for root from 192.0.2.1 port 1 ssh2", "sshd"),
        ("message repeated 2 times: [ Connection closed by 192.0.2.1]", "sshd"),
        ("message repeated 10000000 times: [ Failed password for root from 192.0.2.1 port 1 ssh2]", "sshd"),
        ("message repeated", "sshd"),
        ("PAM 4 more authentication failures; logname= uid=0 euid=0 tty=ssh ruser= rhost=192.0.2.1", "sshd"),
    ],
)
def test_everything_else_is_about_something_else(message: str, program: str) -> None:
    assert said(message, program) is None


@given(st.text(), st.text())
def test_no_message_is_too_much_and_nothing_unprintable_gets_through(user: str, host: str) -> None:
    found = said(f"Failed password for {user} from 192.0.2.1 port 1 ssh2", host=host)
    assert found is not None
    assert found.event.user.isprintable()
    assert found.event.host.isprintable()
    assert found.event.payload()["address"] == "192.0.2.1"


@given(st.text())
def test_no_text_is_too_much(message: str) -> None:
    for start in ("", "Failed ", "Accepted password for ", "message repeated "):
        found = said(start + message)
        assert found is None or found.times >= 0


@given(st.text())
def test_what_is_made_visible_stays_as_it_is(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert visible(text).isprintable()
