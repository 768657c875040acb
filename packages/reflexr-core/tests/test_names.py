import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from reflexr.core import AnyRuleName, Id, RuleName
from reflexr.core.names import Text

ID: TypeAdapter[str] = TypeAdapter(Id)
RULE_NAME: TypeAdapter[str] = TypeAdapter(RuleName)
ANY_RULE_NAME: TypeAdapter[str] = TypeAdapter(AnyRuleName)
TEXT: TypeAdapter[str] = TypeAdapter(Text)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255))
def test_an_id_is_any_text_of_1_to_255_characters_without_nul(id: str) -> None:
    assert ID.validate_python(id) == id


@pytest.mark.parametrize("id", ["", "a" * 256, "\0", "a\0b", "\ud800", "a\udfff", 1, None, True, b"a", ["a"]])
def test_what_is_no_id_is_refused_with_what_an_id_is(id: Any) -> None:
    with pytest.raises(ValidationError, match="An id is 1 to 255 characters, with no NUL and no lone surrogate"):
        ID.validate_python(id)


@pytest.mark.parametrize("name", ["ops:r", "ops:error-spike", "a_1:0.b_c-d", "ops:" + "r" * 96])
def test_a_rule_has_a_qualified_name_of_at_most_100_characters(name: str) -> None:
    assert RULE_NAME.validate_python(name) == ANY_RULE_NAME.validate_python(name) == name


@pytest.mark.parametrize("adapter", [RULE_NAME, ANY_RULE_NAME])
@pytest.mark.parametrize(
    "name",
    [
        *("", "r", ":r", "ops:", "ops:-r", "ops:.r", "Ops:r", "ops:R", "ops:é", "ops:r s", "a:b:c"),
        *("ops:r\n", "ops:\ud800", "ops:r\0", "ops:" + "r" * 97, 3, None, b"ops:r"),
    ],
)
def test_what_is_no_rule_name_is_refused_with_an_example_of_one(adapter: TypeAdapter[str], name: Any) -> None:
    with pytest.raises(ValidationError, match=r"'namespace:name' of at most 100 characters, such as 'ops:error-spike'"):
        adapter.validate_python(name)


def test_the_namespace_of_reflexr_is_for_its_own_rules() -> None:
    assert ANY_RULE_NAME.validate_python("reflexr:r") == "reflexr:r"
    with pytest.raises(
        ValidationError, match="'reflexr' is reserved: name the rule 'reflexr:r' in a namespace of your"
    ):
        RULE_NAME.validate_python("reflexr:r")


@pytest.mark.parametrize("name", ["reflexr:r", "ops:r\n", "r"])
def test_the_schema_of_a_rule_name_refuses_what_the_model_refuses(name: str) -> None:
    schema = RULE_NAME.json_schema()

    assert re.search(schema["pattern"], name) is None or re.search(schema["not"]["pattern"], name) is not None


@pytest.mark.parametrize("text", ["", "é\0\n", "a" * 100_000])
def test_a_text_is_any_string_of_characters(text: str) -> None:
    assert TEXT.validate_python(text) == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", 3, None, b"a"])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError, match="Input should be a valid string"):
        TEXT.validate_python(text)
