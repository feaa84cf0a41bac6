"""From a contract row to what the policy sees: chat template, token ids, length.

There is one render function, `PromptRenderer.render`. The length gate stores the ids it made, and the
shards and the rollout use those ids: nothing is rendered or tokenized twice.
"""
