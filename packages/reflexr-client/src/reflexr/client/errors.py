"""The exceptions of `reflexr.client` that are not rejections, sorted by what the caller should do.

A request that the server refuses raises the same rejection of `reflexr.core` as it does in process.
"""

from typing import override

from reflexr.core import ReflexrError


class ClientError(ReflexrError):
    """The root of this distribution's exceptions; itself, what a programmer did wrong."""


class Unauthorized(ClientError):
    """The server does not know who asks: the token is missing, wrong or over. Ask again with another."""


class Unavailable(ClientError):
    """The server was not reached, or did not answer, as often and as long as the back-off allows. Try again later.

    A command may have been carried out all the same: repeat it under the same `command_id`, and a server that remembers
    its result does not carry it out again.

    Attributes:
        message: What was tried, and how it failed the last time.
        attempts: How often it was tried.
        command_id: The command's id, if it was a command.
    """

    def __init__(self, message: str, attempts: int, command_id: str | None = None) -> None:
        # An exception is copied and pickled by calling its class with its arguments: those of the subclass.
        super().__init__(message, attempts, command_id)
        self.message = message
        self.attempts = attempts
        self.command_id = command_id

    @override
    def __str__(self) -> str:
        return self.message


class UnexpectedAnswer(ClientError):
    """The answer is none that a server of `reflexr.v1` gives: look at the address, what is between, and the server.

    Attributes:
        message: What was asked, and what the answer was.
        status_code: The answer's HTTP status; `None` if it came over a stream.
    """

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message, status_code)
        self.message = message
        self.status_code = status_code

    @override
    def __str__(self) -> str:
        return self.message


class LogReset(ClientError):
    """The log ends before the place after which it was followed: what was known of it is void, as is every place in it.

    It was deleted, or restored from an older copy. Drop what was made of it, and subscribe again from the beginning.

    Attributes:
        after_seq: The place after which the subscription was to go on.
        head_seq: The last place of the log that there is now.
    """

    def __init__(self, after_seq: int, head_seq: int) -> None:
        super().__init__(after_seq, head_seq)
        self.after_seq = after_seq
        self.head_seq = head_seq

    @override
    def __str__(self) -> str:
        return (
            f"the log ends at {self.head_seq}, before {self.after_seq}, after which it was followed: it is another "
            "one now: drop what was made of it, and subscribe again from the beginning"
        )
