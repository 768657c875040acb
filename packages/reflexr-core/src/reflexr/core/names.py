"""The names and ids that travel: their patterns, and the annotated types that validate them.

Nothing here knows which names exist; registries and rules do.
"""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import custom_error_schema

RESERVED_NAMESPACE: Final = "reflexr"
"""The namespace of reflexr's own events and rules; nobody else may use it."""

NAMESPACE_PATTERN: Final = r"^[a-z][a-z0-9_]*$"
LOCAL_NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"
EVENT_TYPE_PATTERN: Final = r"^[a-z][a-z0-9_]*:[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"
RULE_NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*:[a-z0-9][a-z0-9._-]*$"
MAX_RULE_NAME: Final = 100
"""The longest rule name, in characters."""
MAX_ID: Final = 255
"""The longest id that comes from outside, in characters."""


class Refusal:
    """Says in one message what a string has to be, whichever of its constraints it breaks."""

    def __init__(self, kind: str, message: str) -> None:
        self._kind = kind
        self._message = message

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_error_schema(handler(source), self._kind, custom_error_message=self._message)


class Unlike:
    """Adds to a string's JSON Schema a pattern that it must not match.

    Validators differ in whether `$` matches before a final line break, so the break is excluded in so many words.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "not": {"pattern": self._pattern}}


# It is the length that makes pydantic look at the characters.
type Text = Annotated[str, StringConstraints(strict=True, min_length=0)]
"""A string of Unicode characters; a lone surrogate is refused."""


def _not_reserved(value: str) -> str:
    if value.startswith(f"{RESERVED_NAMESPACE}:"):
        raise PydanticCustomError(
            "rule_name",
            "The namespace 'reflexr' is reserved: name the rule {value} in a namespace of your own",
            {"value": repr(value)},
        )
    return value


_RULE_NAME: Final = Refusal(
    "rule_name", "A rule's name is 'namespace:name' of at most 100 characters, such as 'ops:error-spike'"
)

type AnyRuleName = Annotated[
    str,
    StringConstraints(strict=True, pattern=RULE_NAME_PATTERN, max_length=MAX_RULE_NAME),
    _RULE_NAME,
    Unlike(r"\n"),
]
"""A qualified rule name, `namespace:name`, as reflexr's facts carry it."""

type RuleName = Annotated[
    str,
    StringConstraints(strict=True, pattern=RULE_NAME_PATTERN, max_length=MAX_RULE_NAME),
    _RULE_NAME,
    AfterValidator(_not_reserved),
    Unlike(rf"^{RESERVED_NAMESPACE}:|\n"),
]
"""A qualified rule name outside the reserved namespace."""

type Id = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=MAX_ID, pattern=r"^[^\x00]*$"),
    Refusal("id", "An id is 1 to 255 characters, with no NUL and no lone surrogate"),
]
"""An id from outside: 1 to 255 characters, no NUL, no lone surrogate."""
