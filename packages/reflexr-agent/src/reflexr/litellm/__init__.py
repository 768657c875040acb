"""Agents' models behind a LiteLLM proxy: with the extra `litellm`."""

from reflexr.litellm.gateway import LiteLLMGateway
from reflexr.litellm.models import litellm_model

__all__ = [
    # The gateway
    "litellm_model",
    "LiteLLMGateway",
]
