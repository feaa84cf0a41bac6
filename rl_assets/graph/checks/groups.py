"""Groups: the responses that a group-relative trainer compares answer the same prompt for the same reward."""

from rl_assets.errors import InputError
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings, place, shown
from rl_assets.graph.dataset import GraphDataset
from rl_assets.rewards.groups import REWARD_FIELDS, group_faults, groups

NAME = "groups"


def _rollouts(dataset: GraphDataset) -> Findings:
    findings = Findings({"groups": 0})
    for ref, data in dataset.shards("rollouts"):
        fields = data.non_tensor_batch
        prompts: dict[str, int] = {}
        with findings.shard(ref.name, len(data)) as line:
            for index, uid in enumerate(fields["uid"]):
                first = prompts.setdefault(uid, index)
                same = (data.batch["prompts"][index] == data.batch["prompts"][first]).all()
                if not same or fields["raw_prompt"][index] != fields["raw_prompt"][first]:
                    problem = "the prompt is not that of the group's first response"
                    findings.fail(problem, place(data, index))
            line["groups"] = len(prompts)
        findings.count("groups", len(prompts))
    return findings


def _reward_inputs(dataset: GraphDataset) -> Findings:
    findings, count = Findings(), 0
    try:
        for rows in groups(dataset.table("reward_inputs"), ["sample_index", *REWARD_FIELDS]):
            count += 1
            for fault in group_faults(rows, dataset.responses_per_prompt(rows[0]["split"])):
                findings.fail(shown(dataset, fault), rows[0])
    except InputError as error:
        findings.fail(str(error))
    findings.numbers["groups"] = count
    return findings


CHECKS = [
    Check(
        "rollouts",
        NAME,
        "All responses under a uid answer the same prompt: a group-relative trainer compares them with each "
        "other. The table has each shard.",
        _rollouts,
    ),
    Check(
        "reward_inputs",
        NAME,
        "Every uid has exactly n responses, sample indices 0 … n-1, next to each other, which agree on "
        "`data_source`, `ground_truth`, `extra_info` and the row they come from.",
        _reward_inputs,
    ),
]
