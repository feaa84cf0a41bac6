"""A policy that is quick on a CPU: the demo policy's tokenizer and template, a model of random weights."""

import shutil
from pathlib import Path

from tests.build import POLICY

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


WITH_TOOLS = """{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{{- message.content or '' }}{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
{%- if style == 'thoughtful' %}{{ '<think>\n' }}{% endif %}"""
"""A chat template that writes tools and tool calls, and reads a setting; the demo policy's does neither."""


def save_small_policy(folder: Path, seed: int = 0, template: str | None = None) -> Path:
    """Write the policy to `folder`; another seed gives other weights, `template` another chat template."""
    import torch
    import transformers as hf

    settings = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(seed)
    config = hf.LlamaConfig(**settings, vocab_size=49152, bos_token_id=1, eos_token_id=2, pad_token_id=2)
    hf.LlamaForCausalLM(config).save_pretrained(folder)
    for name in _TOKENIZER:
        shutil.copy(POLICY / name, folder / name)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
