"""Hypothesis strategies for rules and logs, as the JSON documents they are when they travel.

Values are few and windows fit the gaps between envelopes, so that what is rare in the field is frequent here:
duplicates, equal times, envelopes exactly at the end of a window, scopes that look alike, predicates that raise.
"""

from typing import Any, Final

from hypothesis import strategies as st

RULE: Final = "ops:rule"
OTHER: Final = "ops:other"

TYPES: Final = ("ops:a", "ops:b", "ops:c")
FACTS: Final = ("reflexr:rule_fired", "reflexr:rule_errored", "reflexr:run_succeeded")

type Document = dict[str, Any]


def _on(*types: str) -> Document:
    return {"kind": "on", "types": list(types)}


def _where(field: str, op: str, value: Any) -> Document:
    return {"kind": "where", "field": field, "op": op, "value": value}


def _predicate(name: str) -> Document:
    return {"kind": "predicate", "name": name}


def _all(*of: Document) -> Document:
    return {"kind": "all", "of": list(of)}


def _any(*of: Document) -> Document:
    return {"kind": "any", "of": list(of)}


def _not(part: Document) -> Document:
    return {"kind": "not", "filter": part}


def _count(at_least: int, within: str) -> Document:
    return {"kind": "count", "at_least": at_least, "within": within}


def _sequence(steps: list[Document], within: str) -> Document:
    return {"kind": "sequence", "steps": steps, "within": within}


def _absence(within: str) -> Document:
    return {"kind": "absence", "within": within}


def _dedupe(key: list[str], within: str) -> Document:
    return {"key": key, "within": within}


def _throttle(at_most: int, per: str) -> Document:
    return {"at_most": at_most, "per": per}


def _rule(
    filter: Document, pattern: Document, dedupe: Document | None, throttle: Document | None, scope: list[str]
) -> Document:
    when = {"filter": filter, "dedupe": dedupe, "pattern": pattern, "throttle": throttle}
    return {
        "name": RULE,
        "when": {name: stage for name, stage in when.items() if stage is not None},
        "scope": {"fields": scope},
        "then": {"action": "act"},
    }


windows: Final = st.sampled_from(["PT10S", "PT10S", "PT10S", "PT5S", "PT1S", "PT1M", "PT0.000001S", "P99999999D"])
"""Lengths of windows."""

gaps: Final = st.sampled_from(
    [0, 0, 1, 1_000_000, 1_000_000, 4_999_999, 5_000_000, 5_000_000, 9_999_999, 10_000_000, 10_000_000, 60_000_000]
)
"""Microseconds from one envelope to the next."""

values: Final = st.sampled_from(
    [None, True, False, 0, 1, 1.0, 7, -0.0, 2**53 + 1, "", "1", "a|b", [1], [1.0], {"y": 1}]
)
"""JSON values that are equal to few of the others, and look like many."""

fields: Final = st.sampled_from(["x", "service", "severity", "key", "x.y", "type"])
"""Paths of fields."""

ons: Final = st.one_of(
    st.sampled_from(TYPES).map(_on),
    st.lists(st.sampled_from([*TYPES, *FACTS]), min_size=1, max_size=4, unique=True).map(lambda types: _on(*types)),
)
"""Filters on types."""

wheres: Final = st.one_of(
    st.builds(_where, fields, st.sampled_from(["eq", "ne", "contains"]), values),
    st.builds(_where, fields, st.sampled_from(["lt", "le", "gt", "ge"]), st.sampled_from([0, 1, 5, 7.0, "", "a"])),
    st.builds(_where, fields, st.just("in"), st.lists(values, min_size=1, max_size=3)),
    st.builds(_where, fields, st.just("exists"), st.booleans()),
    st.builds(_where, fields, st.just("matches"), st.sampled_from(["a", "^$", "1|b", "ops:[ab]"])),
)
"""Filters on a field."""

predicates: Final = st.sampled_from(["severity_at_least_5", "always", "raises", "never"]).map(_predicate)
"""Filters that ask one of the predicates that `hosts` brings."""

filters: Final[st.SearchStrategy[Document]] = st.recursive(
    st.one_of(ons, predicates, wheres),
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda of: _all(*of)),
        st.lists(parts, min_size=1, max_size=3).map(lambda of: _any(*of)),
        parts.map(_not),
    ),
    max_leaves=5,
)
"""Any filter."""


def _mostly(*types: str) -> st.SearchStrategy[Document]:
    """Any filter, and more often one that admits something of these types."""
    plain = st.just(_on(*types))
    return st.one_of(plain, plain, *(st.builds(_all, plain, part) for part in (predicates, wheres, filters)), filters)


steps: Final = st.one_of(_mostly("ops:a"), _mostly("ops:b"))
"""The steps of sequences."""

patterns: Final[st.SearchStrategy[Document]] = st.one_of(
    st.just({"kind": "each"}),
    st.builds(_count, st.integers(1, 4), windows),
    st.builds(_sequence, st.lists(steps, min_size=2, max_size=2) | st.lists(steps, min_size=2, max_size=4), windows),
    st.builds(_absence, windows),
)
"""Any pattern."""

dedupes: Final = st.builds(_dedupe, st.sampled_from([["x"], ["key"], ["severity"], ["x", "key"], ["x.y"]]), windows)
throttles: Final = st.builds(_throttle, st.integers(1, 3), windows)
scopes: Final = st.sampled_from([[], ["service"], [], ["service"], ["service"], ["service", "x"], ["x.y"]])

rules: Final[st.SearchStrategy[Document]] = st.builds(
    _rule,
    st.one_of(_mostly(*TYPES), _mostly(*TYPES, *FACTS), filters),
    patterns,
    st.one_of(st.none(), st.none(), dedupes),
    st.one_of(st.none(), st.none(), throttles),
    scopes,
)
"""Any rule, of the name `RULE`."""

events: Final[st.SearchStrategy[Document]] = st.fixed_dictionaries(
    {},
    optional={
        "x": values,
        "service": st.sampled_from(["a", "b", "1", 1, 1.0, None]),
        "severity": st.integers(0, 9),
        "key": st.sampled_from([1, 2, True, None]),
    },
)
"""The fields of an event."""


def _of_service(event: Document, service: str) -> Document:
    return {**event, "service": service}


def _entry(type: str, event: Document) -> Document:
    return {"type": type, "event": event}


def _fact(type: str, rule: str, event: Document) -> Document:
    return _entry(type, {**event, "rule": rule})


_of_services: Final = st.builds(_of_service, events, st.sampled_from(["a", "b"]))

contents: Final[st.SearchStrategy[Document]] = st.one_of(
    st.builds(_entry, st.sampled_from(TYPES[:2]), _of_services),
    st.builds(_entry, st.sampled_from(TYPES[:2]), _of_services),
    st.builds(_entry, st.sampled_from(TYPES), events),
    st.builds(_fact, st.sampled_from(FACTS), st.sampled_from([RULE, OTHER]), _of_services),
)
"""What a log entry is about: an application's event or a fact, about the rule itself or another."""

depths: Final = st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3])
"""How deep an envelope is in its causal chain."""


def _log(parts: list[tuple[Document, int, int]]) -> list[Document]:
    """The log of these contents, each so many microseconds after the one before and so deep in its chain."""
    entries: list[Document] = []
    elapsed = 0
    for content, gap, depth in parts:
        elapsed += gap
        entries.append({"at": elapsed / 1_000_000, **content, **({"depth": depth} if depth else {})})
    return entries


_parts: Final = st.tuples(contents, gaps, depths)

logs: Final[st.SearchStrategy[list[Document]]] = st.one_of(
    st.lists(_parts, min_size=1, max_size=8), st.lists(_parts, min_size=8, max_size=24)
).map(_log)
"""Logs of one workspace, as the entries that `hosts.envelopes` reads."""
