"""Models behind a LiteLLM proxy, which speaks as OpenAI does whatever it routes to."""

from importlib import import_module
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings


def litellm_model(name: str, *, base_url: str, api_key: str, settings: ModelSettings | None = None) -> Model:
    """Returns a model that is reached through a LiteLLM proxy. Needs the extra `litellm`.

    Its connections are closed at the end of an `async with model:` around the reactor that uses it.

    Args:
        name: What the proxy calls the model.
        base_url: Where the proxy is, such as `http://localhost:4000`.
        api_key: The key for the proxy, unless a `LiteLLMGateway` has the tenant's own.
        settings: The model's settings, unless an agent or a request has others.

    Raises:
        ImportError: The extra is not installed.
    """
    # Only whoever calls this needs the client of OpenAI.
    models: Any = import_module("pydantic_ai.models.openai")
    providers: Any = import_module("pydantic_ai.providers.litellm")
    provider = providers.LiteLLMProvider(api_base=base_url, api_key=api_key)
    return models.OpenAIChatModel(name, provider=provider, settings=settings)
