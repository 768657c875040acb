"""`LiteLLMGateway`: the capability that tells a LiteLLM proxy whose request each one is, and what guards it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, cast, override
from urllib.parse import quote

from opentelemetry.trace import get_current_span
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.settings import ModelSettings

from reflexr.telemetry import attributes, traceparent_of
from reflexr.workspace import Reaction, RunFailure

GUARDRAIL_BLOCKED: Final = "guardrail_blocked"
"""The reason of an attempt whose request or answer a guardrail of the proxy blocked. Permanent."""


@dataclass
class LiteLLMGateway(AbstractCapability[Reaction[Any]]):
    """Attributes an agent's requests to a LiteLLM proxy, which holds them to a tenant's key and a rule's guardrails.

    Each request carries the tenant, the workspace, the rule, the run, the attempt and the causal chain as `metadata`,
    the tenant as the end user, for budgets, the chain as the session, and the trace as `traceparent`. What the agent or
    the model has in its own settings stays.

    A request, or an answer, that a guardrail blocks fails the run for good, with the reason `guardrail_blocked`.

    Attributes:
        tenant_key: Gives the proxy's key of a tenant, such as a virtual key with a budget; by default, and where it
            gives none, the model's key is used.
        guardrails: Gives the names of a rule's guardrails, by the rule's name, such as `{"ops:triage": ["pii"]}.get`;
            by default there are those that the proxy always applies.
    """

    tenant_key: Callable[[str], str | None] | None = None
    guardrails: Callable[[str], Sequence[str] | None] | None = None
    _: KW_ONLY

    @override
    def get_model_settings(self) -> Callable[[RunContext[Reaction[Any]]], ModelSettings]:
        """Returns what makes the settings of each request."""
        return self._settings

    def _settings(self, ctx: RunContext[Reaction[Any]]) -> ModelSettings:
        reaction, given = ctx.deps, ctx.model_settings or ModelSettings()
        headers, body = dict(given.get("extra_headers") or {}), _object(given.get("extra_body"))
        headers["x-litellm-session-id"] = _header(reaction.run.correlation_id)
        headers["x-litellm-end-user-id"] = _header(reaction.workspace.tenant_id)
        if (traceparent := traceparent_of(get_current_span())) is not None:
            headers["traceparent"] = traceparent
        if self.tenant_key is not None and (key := self.tenant_key(reaction.workspace.tenant_id)) is not None:
            headers["Authorization"] = f"Bearer {key}"
        body["metadata"] = _object(body.get("metadata")) | _metadata(reaction)
        if self.guardrails is not None and (names := self.guardrails(reaction.rule.name)):
            body["guardrails"] = list(names)
        return ModelSettings(extra_headers=headers, extra_body=body)

    @override
    async def on_model_request_error(
        self, ctx: RunContext[Reaction[Any]], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Fails the run for good where a guardrail blocked the request.

        Raises:
            RunFailure: It did.
        """
        if isinstance(error, ModelAPIError) and (said := _blocked(_object(error.body))) is not None:
            raise RunFailure(said, reason=GUARDRAIL_BLOCKED, permanent=True) from error
        raise error


_POLICY: Final = re.compile(r"\W*(error\W+)?violated guardrail policy", re.IGNORECASE)
"""How such a message begins: one that only quotes these words, as of a prompt, is another."""


def _blocked(error: Mapping[str, Any]) -> str | None:
    """Returns what a guardrail said that blocked something, if one did.

    The proxy adds which guardrail it was to what that reports; some write it into the message alone.
    """
    message = str(error.get("message"))
    name = _object(error.get("provider_specific_fields")).get("guardrail_name")
    if name is not None:
        return f"the guardrail {name!r} blocked it: {message}"
    return message if _POLICY.match(message) else None


def _metadata(reaction: Reaction[Any]) -> dict[str, str]:
    return {
        attributes.TENANT: reaction.workspace.tenant_id,
        attributes.WORKSPACE: reaction.workspace.workspace_id,
        attributes.RULE: reaction.rule.name,
        attributes.RUN: reaction.run_id,
        attributes.RUN_ATTEMPT: str(reaction.attempt),
        attributes.SESSION: reaction.run.correlation_id,
    }


def _header(text: str) -> str:
    """Returns a text as a header can hold it: an id may have any characters."""
    return quote(text, safe=_IN_HEADERS)


_IN_HEADERS: Final = "!#$&'()*+,/:;=?@[]^`{|} "


def _object(value: object) -> dict[str, Any]:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}
