"""What a `defs.yaml` may say: plain pydantic models, usable without Dagster.

Keys below `data` and `rollout` carry verl's names, so that a `data:` block of a verl configuration can be
pasted. A key of verl's that has no effect in verl is honoured here or refused by name.
"""
