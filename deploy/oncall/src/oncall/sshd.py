"""What sshd's messages say about logins. Lines and their times are `oncall.syslog`'s.

A refused secret is a failure: a password, or an answer to a question. These are none:

- `Failed none`, by which a client asks which methods there are;
- `Failed publickey`, as honest clients offer each key of theirs until one fits, and nobody guesses keys. `hostbased`
  and `gssapi-…` are alike. (fail2ban does not count them either.)
- what PAM says about the same attempts.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, TypedDict

from oncall.events import LoginAccepted, LoginFailed
from oncall.syslog import Record

# sshd logs from its children under names of their own since 9.8.
_PROGRAMS: Final = frozenset({"sshd", "sshd-session", "sshd-auth"})

# One line stands for 999,999 events at most: a line that claims more is not believed.
_REPEATED: Final = re.compile(r"message repeated (\d{1,6}) times: \[ (.*)\]", re.ASCII | re.DOTALL)

# Whoever knocks chooses the user's name, which may hold " from 192.0.2.1 port 22 ssh2": the last address is sshd's own.
_FAILED: Final = re.compile(
    r"Failed (?!none |publickey |hostbased |gssapi)(?P<method>[\w/.-]+) for (?P<unknown>(?:invalid|illegal) user )?"
    r"(?P<user>.*) from (?P<address>\S+) port (?P<port>\d{1,5})(?: ssh2?)?(?: \[preauth\])?",
    re.ASCII | re.DOTALL,
)

# Here the user exists, and after the port may come the key, whose comment somebody chose: the first is sshd's own.
_ACCEPTED: Final = re.compile(
    r"Accepted (?P<method>[\w/.-]+) for (?P<user>.*?)"
    r" from (?P<address>\S+) port (?P<port>\d{1,5})(?: ssh2?)?(?:: .*)?",
    re.ASCII | re.DOTALL,
)


class _Common(TypedDict):
    address: str
    port: int
    user: str
    method: str
    host: str


@dataclass(frozen=True, slots=True)
class Attempts:
    """A login, and how often the line says it happened."""

    event: LoginFailed | LoginAccepted
    times: int


def attempts(record: Record) -> Attempts | None:
    """Returns the logins that a line is about, or `None` if it is about something else."""
    if record.program not in _PROGRAMS:
        return None
    message, times = record.message.rstrip(), 1
    if message.startswith("message repeated") and (repeated := _REPEATED.fullmatch(message)):
        times, message = int(repeated[1]), repeated[2].rstrip()
    if message.startswith("Failed") and (failed := _FAILED.fullmatch(message)):
        return Attempts(LoginFailed(**_common(failed, record), user_exists=failed["unknown"] is None), times)
    if message.startswith("Accepted") and (accepted := _ACCEPTED.fullmatch(message)):
        return Attempts(LoginAccepted(**_common(accepted, record)), times)
    return None


def visible(text: str) -> str:
    """Returns the text with everything escaped that a terminal would not show as a character, but obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _common(parts: re.Match[str], record: Record) -> _Common:
    return {
        "address": _address(parts["address"]),
        "port": int(parts["port"]),
        "user": visible(parts["user"]),
        "method": parts["method"],
        "host": visible(record.host),
    }


@lru_cache(maxsize=4096)
def _address(text: str) -> str:
    """Returns the one spelling of an address, so that an attacker is one scope."""
    try:
        address = ip_address(text)
    except ValueError:
        return visible(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return visible(str(address))
