from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from reflexr.core import (
    Actor,
    AgentActor,
    EvaluatorActor,
    ExternalAgentActor,
    SourceActor,
    SystemActor,
    UserActor,
    participant,
)

ACTOR: TypeAdapter[Actor] = TypeAdapter(Actor)

ids = st.sampled_from(["a", "b", "a|b", 'a","b', "user"])
names = st.none() | ids
identities = st.one_of(
    st.tuples(st.just("user"), ids).map(lambda parts: (parts, UserActor(id=parts[1]))),
    st.tuples(st.just("agent"), st.sampled_from(["x:a", "x:b"]), ids).map(
        lambda parts: (parts, AgentActor(rule=parts[1], run_id=parts[2], name="n"))
    ),
    st.tuples(st.just("external_agent"), ids, names).map(
        lambda parts: (parts, ExternalAgentActor(client_id=parts[1], on_behalf_of=parts[2]))
    ),
    st.tuples(st.just("system"), ids).map(lambda parts: (parts, SystemActor(name=parts[1]))),
    st.tuples(st.just("source"), ids).map(lambda parts: (parts, SourceActor(name=parts[1]))),
    st.tuples(st.just("evaluator"), ids, ids).map(
        lambda parts: (parts, EvaluatorActor(name=parts[1], version=parts[2]))
    ),
)


@given(identities, identities)
def test_two_participants_have_one_text_exactly_when_they_are_the_same(left: Any, right: Any) -> None:
    assert (participant(left[1]) == participant(right[1])) is (left[0] == right[0])


def test_a_participant_is_the_same_under_another_name() -> None:
    assert participant(UserActor(id="a")) == participant(UserActor(id="a", name="Ada"))
    assert participant(AgentActor(rule="x:a", run_id="r", name="n")) == participant(
        AgentActor(rule="x:a", run_id="r", name="m")
    )
    assert participant(ExternalAgentActor(client_id="c")) == participant(ExternalAgentActor(client_id="c", name="C"))


@given(identities)
def test_an_actor_comes_back_from_json_as_it_was(identity: Any) -> None:
    actor = identity[1]

    assert ACTOR.validate_json(ACTOR.dump_json(actor)) == actor


@pytest.mark.parametrize("id", ["", "a" * 256, "a\0", "\ud800", 1, None])
def test_an_actor_has_an_id_that_can_be_stored(id: Any) -> None:
    with pytest.raises(ValidationError, match="An id is 1 to 255 characters, with no NUL and no lone surrogate"):
        ACTOR.validate_python({"kind": "user", "id": id})


def test_an_unknown_kind_of_actor_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(ValidationError, match="'user', 'agent', 'external_agent', 'system', 'source', 'evaluator'"):
        ACTOR.validate_python({"kind": "robot"})
