"""A real LiteLLM proxy, with a model that answers by itself."""

import asyncio
import json
import os
import shutil
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic_ai import Agent

from reflexr.agent import AgentAction
from reflexr.core import Run
from reflexr.litellm import LiteLLMGateway, litellm_model
from reflexr.workspace import Reaction

from .harbour import Arrived, Harbour

LONG: Final = 100.0
"""How many seconds the proxy has to start."""

CONFIG: Final = {
    "model_list": [
        {
            "model_name": "mock",
            "litellm_params": {"model": "openai/mock", "api_key": "x", "mock_response": "It is open."},
        }
    ],
    "guardrails": [
        {
            "guardrail_name": "no-secrets",
            "litellm_params": {
                "guardrail": "litellm_content_filter",
                "mode": "pre_call",
                "blocked_words": [{"keyword": "secret", "action": "BLOCK"}],
            },
        }
    ],
    "general_settings": {"master_key": "sk-of-the-operator-which-is-long-enough-0123456789", "custom_auth": "own.auth"},
    "litellm_settings": {"callbacks": "own.seen"},
}

OWN: Final = """
import json
from pathlib import Path

from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth


async def auth(request, api_key):
    if api_key != "sk-acme":
        raise PermissionError("no such key")
    return UserAPIKeyAuth(api_key=api_key)


class Seen(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        request = {"end_user": user_api_key_dict.end_user_id, "metadata": data["metadata"]}
        with Path(__file__).with_name("seen").open("a") as written:
            written.write(json.dumps(request, default=str) + "\\n")


seen = Seen()
"""


pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]


def program() -> str:
    """The proxy's program: that of REFLEXR_TEST_LITELLM, or the one on the path."""
    named = os.environ.get("REFLEXR_TEST_LITELLM") or shutil.which("litellm")
    assert named is not None, "install 'litellm[proxy]' somewhere, and name its program in REFLEXR_TEST_LITELLM"
    return named


@asynccontextmanager
async def started(folder: Path) -> AsyncGenerator[str]:
    """Starts the proxy, and says where it is."""
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    (folder / "own.py").write_text(OWN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = (
        program(),
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--telemetry",
        "False",
    )
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(folder)},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert process.stdout is not None
    log: list[str] = []
    try:
        async with asyncio.timeout(LONG):
            while line := (await process.stdout.readline()).decode():
                log.append(line)
                if "Uvicorn running" in line:
                    break
            else:
                pytest.fail("".join(log))
        draining = asyncio.create_task(process.stdout.read())
        yield f"http://127.0.0.1:{port}"
        draining.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def run_of(harbour: Harbour, url: str, question: str, gateway: LiteLLMGateway) -> Run:
    async with litellm_model("mock", base_url=url, api_key="sk-nobodys") as model:
        agent = Agent(model, deps_type=Reaction[None], capabilities=[gateway])
        await harbour.publish(Arrived(ship=question))
        return await harbour.act(AgentAction(agent, name="pilot", prompt=lambda _: question))


async def test_a_proxy_serves_an_agent_by_its_tenants_key_and_holds_it_to_its_rules_guardrails(tmp_path: Path) -> None:
    harbour = Harbour()
    key, guardrails = {"acme": "sk-acme"}.get, {"harbour:a": ["no-secrets"]}.get

    async with started(tmp_path) as url:
        answered = await run_of(harbour, url, "is it open?", LiteLLMGateway(key, guardrails))
        blocked = await run_of(harbour, url, "what is the secret?", LiteLLMGateway(key, guardrails))
        unguarded = await run_of(harbour, url, "what was the secret?", LiteLLMGateway(key))
        stranger = await run_of(harbour, url, "may I?", LiteLLMGateway())

    seen: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert (answered.status, answered.output) == ("succeeded", "It is open.")
    assert (blocked.status, blocked.reason) == ("dead_lettered", "guardrail_blocked")
    assert "no-secrets" in (blocked.error or "")
    assert (unguarded.status, stranger.status) == ("succeeded", "retrying")
    assert seen[0]["metadata"]["reflexr.tenant.id"] == "acme"
    assert seen[0]["metadata"]["reflexr.run.id"] == answered.id
    assert seen[0]["end_user"] == "acme"
