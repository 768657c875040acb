from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.settings import ModelSettings

from reflexr.agent import AgentAction
from reflexr.core import Run
from reflexr.litellm import LiteLLMGateway, litellm_model
from reflexr.workspace import Reaction

from .harbour import Arrived, Harbour, Script
from .proxies import Proxy, proxy

BLOCKED = {
    "error": {
        "message": "Content blocked: keyword 'secret' detected",
        "type": "invalid_request_error",
        "param": None,
        "code": "400",
        "provider_specific_fields": {"keyword": "secret", "guardrail_name": "no-secrets", "guardrail_mode": "pre_call"},
    }
}


@pytest.fixture
async def harbour() -> Harbour:
    harbour = Harbour()
    await (await harbour.open()).publish(Arrived(ship="Argo"), id="chain-é\n1")
    return harbour


async def run_of(harbour: Harbour, served: Proxy, gateway: LiteLLMGateway, **options: Any) -> Run:
    model = litellm_model("mock", base_url=served.url, api_key="ours", settings=ModelSettings(temperature=0.5))
    settings = InstrumentationSettings(tracer_provider=harbour.tracer_provider)
    capabilities = [Instrumentation(settings=settings), gateway]
    agent = Agent(model, deps_type=Reaction[None], name="pilot", capabilities=capabilities, **options)
    return await harbour.act(AgentAction(agent, name="pilot"))


async def test_a_request_says_whose_it_is(harbour: Harbour) -> None:
    async with proxy("It is open.") as served:
        run = await run_of(harbour, served, LiteLLMGateway())

    (headers,), (body,) = served.headers, served.bodies
    assert run.output == "It is open."
    assert (body["model"], body["temperature"], "guardrails" in body) == ("mock", 0.5, False)
    assert body["metadata"] == {
        "reflexr.tenant.id": "acme",
        "reflexr.workspace.id": "north",
        "reflexr.rule": "harbour:a",
        "reflexr.run.id": run.id,
        "reflexr.run.attempt": "1",
        "session.id": "chain-é\n1",
    }
    assert headers["x-litellm-session-id"] == "chain-%C3%A9%0A1"
    assert headers["x-litellm-end-user-id"] == "acme"
    assert headers["authorization"] == "Bearer ours"
    assert headers["traceparent"].split("-")[1] == run.trace_ids[0]


async def test_a_request_has_the_tenants_key_and_the_rules_guardrails(harbour: Harbour) -> None:
    gateway = LiteLLMGateway({"acme": "theirs"}.get, {"harbour:a": ["pii", "no-secrets"]}.get)

    async with proxy("done") as served:
        await run_of(harbour, served, gateway)

    assert served.headers[0]["authorization"] == "Bearer theirs"
    assert served.bodies[0]["guardrails"] == ["pii", "no-secrets"]


async def test_where_there_is_no_key_and_no_guardrail_the_proxys_own_apply(harbour: Harbour) -> None:
    async with proxy("done") as served:
        await run_of(harbour, served, LiteLLMGateway({"other": "x"}.get, {"other": ["pii"]}.get))

    assert served.headers[0]["authorization"] == "Bearer ours"
    assert "guardrails" not in served.bodies[0]


async def test_what_the_agent_has_in_its_own_settings_stays(harbour: Harbour) -> None:
    own = ModelSettings(
        extra_headers={"x-mine": "1"}, extra_body={"cache": {"no-cache": True}, "metadata": {"mine": "2"}}
    )

    async with proxy("done") as served:
        await run_of(harbour, served, LiteLLMGateway(), model_settings=own)

    assert served.headers[0]["x-mine"] == "1"
    assert served.bodies[0]["cache"] == {"no-cache": True}
    assert served.bodies[0]["metadata"]["mine"] == "2"
    assert served.bodies[0]["metadata"]["reflexr.tenant.id"] == "acme"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BLOCKED, "the guardrail 'no-secrets' blocked it: Content blocked: keyword 'secret' detected"),
        (
            {"error": {"message": "{'error': 'Violated guardrail policy', 'reason': 'x'}", "code": "400"}},
            "{'error': 'Violated guardrail policy', 'reason': 'x'}",
        ),
    ],
)
async def test_a_guardrail_that_blocks_fails_the_run_for_good(
    harbour: Harbour, error: dict[str, Any], said: str
) -> None:
    async with proxy((400, error)) as served:
        run = await run_of(harbour, served, LiteLLMGateway())

    assert (run.status, run.reason, run.attempt) == ("dead_lettered", "guardrail_blocked", 1)
    assert run.error == said


@pytest.mark.parametrize("message", ["no such model", "cannot read 'Violated guardrail policy'", None])
async def test_another_refusal_is_tried_again(harbour: Harbour, message: str | None) -> None:
    async with proxy((400, {"error": {"message": message, "code": "400"}})) as served:
        run = await run_of(harbour, served, LiteLLMGateway())

    assert (run.status, run.reason) == ("retrying", None)


async def test_a_proxy_that_is_not_there_is_tried_again(harbour: Harbour) -> None:
    run = await run_of(harbour, Proxy(url="http://127.0.0.1:1"), LiteLLMGateway())

    assert (run.status, run.reason) == ("retrying", None)


async def test_what_else_goes_wrong_is_tried_again(harbour: Harbour) -> None:
    agent = Agent(Script(OSError("down")).model, deps_type=Reaction[None], capabilities=[LiteLLMGateway()])

    run = await harbour.act(AgentAction(agent, name="pilot"))

    assert (run.status, run.reason) == ("retrying", None)


async def test_untraced_requests_carry_no_trace() -> None:
    harbour = Harbour()
    await harbour.publish(Arrived(ship="Argo"))

    async with proxy("done") as served:
        model = litellm_model("mock", base_url=served.url, api_key="ours")
        agent = Agent(model, deps_type=Reaction[None], capabilities=[LiteLLMGateway()])
        reactions: list[Reaction[None]] = []

        async def pilot(reaction: Reaction[None]) -> None:
            reactions.append(reaction)

        await harbour.act(pilot)
        await agent.run("?", deps=reactions[0])

    assert "traceparent" not in served.headers[0]
