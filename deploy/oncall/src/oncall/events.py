"""What an authentication log says, as events. How it is read from lines is in `oncall.sshd`."""

from reflexr.core import Event


class OncallEvent(Event, abstract=True, event_namespace="oncall"):
    """The events of this application."""


class Login(OncallEvent, abstract=True):
    """An attempt to log in.

    Attributes:
        address: Where it came from: an IP address in its usual spelling, or what the log has in its place.
        port: The port it came from.
        user: The name that was to log in.
        method: How: `password`, `publickey`, `keyboard-interactive/pam`.
        host: The machine that was to be logged in to.
    """

    address: str
    port: int
    user: str
    method: str
    host: str


class LoginFailed(Login, name="login.failed"):
    """A wrong secret was refused.

    Attributes:
        user_exists: Whether the machine has such a user.
    """

    user_exists: bool = True


class LoginAccepted(Login, name="login.accepted"):
    """Somebody is in."""


class LogAdvanced(OncallEvent, name="log.advanced"):
    """The log went on, and nobody tried to log in: it moves the rules' clock while the log is quiet.

    Attributes:
        line: The number of the line that was read.
    """

    line: int
