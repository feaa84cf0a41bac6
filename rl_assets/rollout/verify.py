"""The decoding loop checked at run time: one response against one plain forward pass over its whole row."""

import torch

from rl_assets.base.progress import Log
from rl_assets.rollout.policy import Policy
from rl_assets.rollout.positions import media_inputs
from rl_assets.rollout.requests import Prompt, Response

# Mean difference in log-probability per token that rounding explains. A cache, mask or position that is
# wrong gives one of about 1 or more.
_TOLERANCE = {torch.float32: 0.02, torch.float64: 0.02}
_HALF_TOLERANCE = 0.25


@torch.inference_mode()
def agrees(policy: Policy, prompt: Prompt, response: Response, log: Log) -> bool:
    """Whether a response's log-probs are those of the model itself: no cache, no batch, its own positions.

    `log` is told the mean difference per token, and what follows where it is more than rounding explains.
    """
    tokens = torch.tensor([[*prompt.ids, *response.token_ids]])
    made = len(response.token_ids)
    logits = policy.model(
        input_ids=tokens.to(policy.device),
        attention_mask=torch.ones_like(tokens).to(policy.device),
        use_cache=False,
        logits_to_keep=made + 1,
        **media_inputs(policy, prompt, tokens),
    ).logits[0, :-1]
    chosen = torch.tensor(response.token_ids, device=policy.device)[:, None]
    plain = logits.float().log_softmax(-1).gather(1, chosen)[:, 0].cpu()
    apart = (plain - torch.tensor(response.raw_log_probs)).abs().mean().item()
    if apart <= _TOLERANCE.get(policy.dtype, _HALF_TOLERANCE):
        log(f"rollouts: decoding agrees with a plain forward pass to {apart:.1g} per token")
        return True
    log(
        f"rollouts: WARNING: log-probs of the decoding loop and of a plain forward pass of {policy.folder} "
        f"are {apart:.3g} apart per token, so every token comes from a plain pass over its row now: right, "
        "but many times slower; another policy.attn_implementation may help"
    )
    return False
