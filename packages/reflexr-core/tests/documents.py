"""Hypothesis strategies for JSON documents in all their breadth: rules and client frames, whole and broken.

`strategies` has the narrow ones, whose rules and logs meet each other.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final, cast

from hypothesis import strategies as st

from reflexr.core.durations import DURATION_PATTERN, MAX_DURATION, parse_duration

type Document = dict[str, Any]
type Path = tuple[str | int, ...]


def record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Document]:
    """Returns a strategy for JSON objects with these fields, and with any of the optional ones."""
    return st.fixed_dictionaries(required, optional=optional or {})


texts: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Texts that JSON can hold."""

json_values: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
"""Any JSON value."""

objects: Final = st.dictionaries(texts, json_values, max_size=3)
"""JSON objects."""

ids: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=255)
event_types: Final = st.from_regex(
    r"[a-z][a-z0-9_]{0,5}:[a-z][a-z0-9_]{0,5}(\.[a-z][a-z0-9_]{0,3}){0,2}", fullmatch=True
)
rule_names: Final = st.from_regex(r"(?!reflexr:)[a-z][a-z0-9_]{0,8}:[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True)
fields: Final = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00."), min_size=1, max_size=8),
    min_size=1,
    max_size=3,
).map(".".join)
windows: Final = st.sampled_from(["PT1M", "PT0.000001S", "P1DT12H30M", "P2W", "PT90M", "PT00001S"])
durations: Final = (
    windows
    | st.sampled_from(["PT0S", "P0D", "PT0.0S"])
    | st.from_regex(DURATION_PATTERN, fullmatch=True).filter(lambda text: parse_duration(text) <= MAX_DURATION)
)
whole: Final[st.SearchStrategy[Any]] = st.integers(1, 100) | st.sampled_from([1.0, 3.0, 2**63 - 1])


def _where(field: str, op: str, value: Any) -> Document:
    return {"kind": "where", "field": field, "op": op, "value": value}


wheres: Final = st.one_of(
    st.builds(_where, fields, st.sampled_from(["eq", "ne", "contains"]), json_values),
    st.builds(_where, fields, st.sampled_from(["lt", "le", "gt", "ge"]), st.integers() | st.floats(0, 9) | texts),
    st.builds(_where, fields, st.just("in"), st.lists(json_values, min_size=1, max_size=3)),
    st.builds(_where, fields, st.just("exists"), st.booleans()),
    st.builds(_where, fields, st.just("matches"), st.sampled_from(["", "a+", r"^\d$", "(?i)x", r"\p{L}"])),
)

filters: Final[st.SearchStrategy[Document]] = st.recursive(
    st.one_of(
        record({"kind": st.just("on"), "types": st.lists(event_types, min_size=1, max_size=3)}),
        wheres,
        record({"kind": st.just("predicate"), "name": ids}),
    ),
    lambda parts: st.one_of(
        record({"kind": st.sampled_from(["all", "any"]), "of": st.lists(parts, min_size=1, max_size=3)}),
        record({"kind": st.just("not"), "filter": parts}),
    ),
    max_leaves=4,
)
"""Any filter."""

patterns: Final[st.SearchStrategy[Document]] = st.one_of(
    st.just({"kind": "each"}),
    record({"kind": st.just("count"), "at_least": whole, "within": windows}),
    record({"kind": st.just("sequence"), "steps": st.lists(filters, min_size=2, max_size=3), "within": windows}),
    record({"kind": st.just("absence"), "within": windows}),
)
"""Any pattern."""

conditions: Final[st.SearchStrategy[Document]] = record(
    {"filter": filters},
    {
        "dedupe": st.none() | record({"key": st.lists(fields, min_size=1, max_size=2), "within": windows}),
        "pattern": patterns,
        "throttle": st.none() | record({"at_most": whole, "per": windows}),
    },
)
"""Any condition."""

rules: Final[st.SearchStrategy[Document]] = record(
    {
        "name": rule_names,
        "when": conditions,
        "then": record({"action": ids}, {"params": objects}),
    },
    {
        "description": st.none() | texts,
        "scope": record({}, {"fields": st.lists(fields, max_size=2)}),
        "retry": record(
            {},
            {
                "max_attempts": whole,
                "backoff": durations,
                "multiplier": st.integers(1, 9) | st.floats(1, 9),
                "max_backoff": durations,
            },
        ),
        "ordering": st.sampled_from(["scope", "none"]),
        "on_dead_letter": st.sampled_from(["continue", "block"]),
        "on_pause": st.sampled_from(["continue", "block"]),
        "start": st.sampled_from(["now", "beginning"]),
        "timeout": st.none() | windows,
        "enabled": st.booleans(),
    },
)
"""Any rule, with everything that a rule can say."""

targets: Final[st.SearchStrategy[Document]] = st.one_of(
    record({"kind": st.just("run"), "run_id": ids}),
    record({"kind": st.just("firing"), "firing_id": ids}),
    record({"kind": st.just("chain"), "correlation_id": ids}),
)
"""Any target of feedback."""

places: Final = st.integers(0, 2**63 - 1)
reasons: Final = st.none() | texts
versions: Final = st.none() | whole


def _event(fields: Document, event_type: str) -> Document:
    return {**fields, "type": event_type}


commands: Final[st.SearchStrategy[Document]] = st.one_of(
    record(
        {
            "type": st.just("publish"),
            "event": st.builds(_event, objects, event_types),
        },
        {"id": st.none() | ids, "correlation_id": st.none() | ids},
    ),
    record({"type": st.just("give_feedback"), "feedback_type": ids, "target": targets, "value": objects}),
    record({"type": st.just("retry_run"), "run_id": ids}),
    record({"type": st.sampled_from(["skip_run", "cancel_run"]), "run_id": ids}, {"reason": reasons}),
    record({"type": st.just("resume_run"), "run_id": ids}, {"answer": json_values, "attempt": versions}),
    record(
        {
            "type": st.just("replay_rule"),
            "rule": rule_names,
            "from_seq": places,
            "mode": st.sampled_from(["rebuild", "refire"]),
        }
    ),
    record({"type": st.just("install_rule"), "rule": rules}, {"provenance": objects}),
    record(
        {"type": st.just("update_rule"), "rule": rules},
        {"provenance": objects, "expected_version": versions},
    ),
    record(
        {"type": st.just("archive_rule"), "rule": rule_names},
        {"expected_version": versions, "reason": reasons},
    ),
)
"""Any command."""

client_frames: Final[st.SearchStrategy[Document]] = st.one_of(
    record(
        {"type": st.just("hello"), "protocol": texts},
        {
            "resume_after_seq": places,
            "from_head": st.booleans(),
            "types": st.none() | st.lists(event_types, min_size=1, max_size=3),
            "deltas": st.booleans(),
        },
    ),
    record({"type": st.just("command"), "command_id": ids, "command": commands}),
)
"""Any frame of a client."""


def nested(levels: int) -> Any:
    """Returns so many lists, each in the one before."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_WORDS: Final = [
    *["", "a", "3", "a\x00", "a\n", "é" * 256, "(", "a(?=b)", r"(a)\1", "nope"],
    *["PT0S", "P1Y", "P1M", "pt1m", "PT", "P", "1M", "PT1M\n", "PT-1S", "PT1.1234567S", "P1W1D", "PT\u0663S"],
    *["P99999999DT999999999H", "ops:a\n", "ops", "Ops:a", "ops:", ":a", "reflexr:mine", "reflexr:rule_fired"],
    *["a:" + "b" * 98, "a:" + "b" * 99, "a.b", ".a", "a.", "a..b"],
    *["eq", "lt", "in", "matches", "exists", "now", "none", "scope"],
]

_VALUES: Final[list[Any]] = [
    *[None, True, False, 0, -1, 1, 1.0, 0.5, 3, 60, 2**63, 10**400],
    *[[], {}, [1], [[]], [None], {"a": 1}, {"kind": "on"}, {"kind": "maybe"}, {"type": "maybe"}],
]

_JUNK: Final[st.SearchStrategy[Any]] = st.one_of(
    st.sampled_from(_WORDS),
    st.sampled_from(_VALUES),
    st.sampled_from([95, 99, 100, 101, 102]).map(nested),
    json_values,
    filters,
    windows,
)
"""What is in its place nowhere, or somewhere else."""


def _paths(document: Any, here: Path = ()) -> Iterator[Path]:
    yield here
    if isinstance(document, dict):
        for key, value in cast("Document", document).items():
            yield from _paths(value, (*here, key))
    elif isinstance(document, list):
        for index, value in enumerate(cast("list[Any]", document)):
            yield from _paths(value, (*here, index))


@st.composite
def broken(draw: st.DrawFn, documents: st.SearchStrategy[Document]) -> Any:
    """Draws a document that differs in one to three places from a whole one, and is perhaps whole all the same."""
    document: Any = deepcopy(draw(documents))
    for _ in range(draw(st.integers(1, 3))):
        document = _broken_once(draw, document)
    return document


def _broken_once(draw: st.DrawFn, document: Any) -> Any:
    path = draw(st.sampled_from(list(_paths(document))))
    if not path:
        return draw(st.sampled_from([document, document, document, None, [], "rule", 1]))
    parent: Any = document
    for key in path[:-1]:
        parent = parent[key]
    match draw(st.sampled_from(["replace", "replace", "replace", "drop", "add", "alter"])):
        case "drop":
            del parent[path[-1]]
        case "add":
            junk = deepcopy(draw(_JUNK))
            if isinstance(parent, dict):
                name = st.sampled_from(["extra", "kind", "type", "value", "within", "fields", "reason", "timeout"])
                cast("Document", parent)[draw(name)] = junk
            else:
                parent.append(junk)
        case "alter" if isinstance(parent[path[-1]], str):
            text: str = parent[path[-1]]
            parent[path[-1]] = draw(st.sampled_from([text.upper(), text.strip(), f"{text}\n", f" {text}"]))
        case _:
            parent[path[-1]] = deepcopy(draw(_JUNK))
    return document
