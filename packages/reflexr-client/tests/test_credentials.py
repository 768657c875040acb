import pytest

from reflexr.client import ClientError
from reflexr.client.credentials import Credentials


async def test_a_token_travels_as_a_bearer_beside_the_other_headers() -> None:
    credentials = Credentials("secret", {"X-Tenant": "acme"})
    assert await credentials.headers() == {"X-Tenant": "acme", "Authorization": "Bearer secret"}


async def test_without_a_token_the_headers_are_all_there_is() -> None:
    assert await Credentials(None, {"Authorization": "Basic eA=="}).headers() == {"Authorization": "Basic eA=="}


async def test_a_token_that_is_renewed_is_asked_for_each_time() -> None:
    tokens = iter(("one", "two"))

    async def token() -> str:
        return next(tokens)

    credentials = Credentials(token, {})
    assert [(await credentials.headers())["Authorization"] for _ in range(2)] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("token", ["", "two words", "line\r\nX: 1", "schlüssel"])
async def test_what_can_be_no_token_is_refused_and_not_repeated(token: str) -> None:
    async def fetch() -> str:
        return token

    with pytest.raises(ClientError) as raised:
        Credentials(token, {})
    with pytest.raises(ClientError) as fetched:
        await Credentials(fetch, {}).headers()
    assert str(raised.value) == str(fetched.value) == "token: it is empty, or holds a space or what is not ASCII"


@pytest.mark.parametrize("headers", [{"X A": "1"}, {"": "1"}, {"X": "a\nb"}, {"X": "ü"}])
def test_a_header_that_cannot_travel_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ClientError, match="headers"):
        Credentials(None, headers)


def test_a_token_and_a_header_that_says_another_are_refused() -> None:
    with pytest.raises(ClientError, match="leave one out"):
        Credentials("secret", {"authorization": "Basic eA=="})
