"""From a contract row to what the policy sees: tokenizer, tools, rendering, length.

There is one render function, `PromptRenderer.render`. The length gate stores the ids it made, and the
shards and the rollout use those ids: nothing is rendered or tokenised twice.
"""

from rl_assets.prompts.length import (
    LENGTH_FILTERED_SCHEMA,
    OVERLONG_SCHEMA,
    LengthResult,
    Truncation,
    filter_by_length,
)
from rl_assets.prompts.render import PromptRenderer, Rendered, RenderStamp
from rl_assets.prompts.tools import load_tool_schemas

__all__ = [
    "LENGTH_FILTERED_SCHEMA",
    "OVERLONG_SCHEMA",
    "LengthResult",
    "PromptRenderer",
    "RenderStamp",
    "Rendered",
    "Truncation",
    "filter_by_length",
    "load_tool_schemas",
]
