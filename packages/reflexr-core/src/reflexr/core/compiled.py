"""Compiled conditions: a filter, a scope and a dedupe key as functions over envelopes.

A condition is compiled once for each definition; nothing here keeps state.
"""

import operator
from collections.abc import Callable, Mapping
from hashlib import sha256
from json.encoder import encode_basestring_ascii
from typing import Any, Final, cast

from reflexr.core.canonical import canonical_list, equal
from reflexr.core.envelopes import Envelope
from reflexr.core.fields import MISSING, reader
from reflexr.core.filters import ORDERINGS, AllOf, AnyOf, Filter, Not, On, Predicate, Where, search
from reflexr.core.type_sets import EVERY, TypeSet

type Predicates = Mapping[str, Callable[[Envelope], bool]]
"""The application's functions over envelopes, by the name that rules use."""

type Test = Callable[[Envelope, Predicates], bool]
"""A compiled filter."""

type Payload = Mapping[str, Any]

MAX_KEY: Final = 128
"""The longest dedupe key kept as it is, in characters; a longer one is kept as its SHA-256."""

_NUMBERS: Final = frozenset((int, float))
_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {name: getattr(operator, name) for name in sorted(ORDERINGS)}


class MissingScopeField(Exception):
    """An envelope that passed a rule's filter lacks a field of the rule's scope."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the event has no field {field!r}, which is in the rule's scope")


def compile_filter(condition: Filter, given: TypeSet = EVERY) -> Test | None:
    """Returns the filter as a function, or `None` if it admits every envelope of the types given."""
    match condition:
        case On():
            types = frozenset(condition.types)
            if given <= TypeSet(types):
                return None
            return lambda envelope, _: envelope.payload["type"] in types
        case Where():
            return _over_payload(compile_where(condition))
        case AllOf():
            return _all([test for part in condition.of if (test := compile_filter(part, given)) is not None])
        case AnyOf():
            return _any([(part, compile_filter(part, given)) for part in condition.of])
        case Not():
            test = compile_filter(condition.filter, given)
            return _nothing if test is None else _not(test)
        case _:
            return _predicate(condition.name)


def compile_where(where: Where) -> Callable[[Payload], bool]:
    """Returns a comparison of a payload's field as a function of the payload."""
    value: Any = where.value
    match where.op:
        case "exists":
            read = reader(where.field)
            return lambda payload: (read(payload) is not MISSING) is value
        case "eq":
            return _test_value(where.field, _equality(value))
        case "ne":
            same = _equality(value)
            return _test_value(where.field, lambda found: not same(found))
        case "in":
            return _test_value(where.field, _membership(value))
        case "contains":
            return _test_value(where.field, lambda found: _contains(found, value))
        case "matches":
            found_in = search(value).isinstance_python
            return _test_value(where.field, lambda found: type(found) is str and found_in(found))
        case _:
            return _ordering(where.field, _ORDER[where.op], value)


def compile_scope(fields: tuple[str, ...]) -> Callable[[Payload], str]:
    """Returns a function that gives a payload's scope key: the canonical JSON of the list of the fields' values.

    The function raises `MissingScopeField` for a payload that lacks one.
    """
    match fields:
        case ():
            return lambda payload: "[]"
        case (name,) if "." not in name:
            return _scope_of_one(name)
        case _:
            return _scope_of_many(fields)


def compile_dedupe(fields: tuple[str, ...]) -> Callable[[Payload], str]:
    """Returns a function that gives a payload's dedupe key; a field that is missing counts as `null`."""
    readers = [reader(field) for field in fields]

    def key_of(payload: Payload) -> str:
        key = canonical_list([None if (value := read(payload)) is MISSING else value for read in readers])
        # A key begins with a bracket and a hash does not, so the two never meet.
        return key if len(key) <= MAX_KEY else sha256(key.encode("ascii")).hexdigest()

    return key_of


def _scope_of_one(name: str) -> Callable[[Payload], str]:
    def key_of(payload: Payload) -> str:
        value = payload.get(name, MISSING)
        if type(value) is str:
            return f"[{encode_basestring_ascii(value)}]"
        if value is MISSING:
            raise MissingScopeField(name)
        return canonical_list((value,))

    return key_of


def _scope_of_many(fields: tuple[str, ...]) -> Callable[[Payload], str]:
    readers = [(field, reader(field)) for field in fields]

    def key_of(payload: Payload) -> str:
        values: list[Any] = []
        for field, read in readers:
            value = read(payload)
            if value is MISSING:
                raise MissingScopeField(field)
            values.append(value)
        return canonical_list(values)

    return key_of


def _over_payload(test: Callable[[Payload], bool]) -> Test:
    return lambda envelope, _: test(envelope.payload)


def _all(tests: list[Test]) -> Test | None:
    match tests:
        case []:
            return None
        case [test]:
            return test
        case [first, second]:
            return lambda envelope, predicates: first(envelope, predicates) and second(envelope, predicates)
        case _:
            return lambda envelope, predicates: all(test(envelope, predicates) for test in tests)


def _any(parts: list[tuple[Filter, Test | None]]) -> Test | None:
    tests: list[Test] = []
    asked = False
    for part, test in parts:
        if test is None:
            # What comes before is asked first, and only a predicate can answer with an error.
            return _everything(tests) if asked else None
        tests.append(test)
        asked = asked or _has_predicate(part)
    return lambda envelope, predicates: any(test(envelope, predicates) for test in tests)


def _everything(tests: list[Test]) -> Test:
    return lambda envelope, predicates: any(test(envelope, predicates) for test in tests) or True


def _has_predicate(condition: Filter) -> bool:
    match condition:
        case Predicate():
            return True
        case On() | Where():
            return False
        case AllOf() | AnyOf():
            return any(map(_has_predicate, condition.of))
        case _:
            return _has_predicate(condition.filter)


def _not(test: Test) -> Test:
    return lambda envelope, predicates: not test(envelope, predicates)


def _nothing(envelope: Envelope, predicates: Predicates) -> bool:
    return False


def _predicate(name: str) -> Test:
    def test(envelope: Envelope, predicates: Predicates) -> bool:
        answer: object = predicates[name](envelope)
        if answer is not True and answer is not False:
            raise TypeError(f"the predicate {name!r} returned {answer!r}: return True or False")
        return answer

    return test


def _test_value(field: str, test: Callable[[Any], bool]) -> Callable[[Payload], bool]:
    if "." not in field:
        return lambda payload: field in payload and test(payload[field])
    read = reader(field)
    return lambda payload: (found := read(payload)) is not MISSING and test(found)


def _equality(value: Any) -> Callable[[Any], bool]:
    if value is None or value is True or value is False:
        return lambda found: found is value
    if isinstance(value, str):
        return lambda found: found == value
    if isinstance(value, int | float):
        return lambda found: type(found) in _NUMBERS and found == value
    return lambda found: equal(found, value)


def _membership(values: list[Any]) -> Callable[[Any], bool]:
    if all(isinstance(value, str) for value in values):
        texts = frozenset(values)
        return lambda found: type(found) is str and found in texts
    return lambda found: any(equal(found, value) for value in values)


def _contains(found: Any, value: Any) -> bool:
    if type(found) is str:
        return type(value) is str and value in found
    return isinstance(found, list) and any(equal(element, value) for element in cast("list[Any]", found))


def _ordering(field: str, compare: Callable[[Any, Any], bool], value: Any) -> Callable[[Payload], bool]:
    kinds = frozenset((str,)) if isinstance(value, str) else _NUMBERS
    read = reader(field)

    def test(payload: Payload) -> bool:
        found = read(payload)
        return type(found) in kinds and compare(found, value)

    return test
