"""Makes `data/gsm_symbolic/`: grade-school word problems in verl's row schema.

The problems come from the PyPI package reasoning-gym, in two difficulties:

* multi-step problems of its `gsm_symbolic` generator, from templates that give well-formed questions
  and worked solutions that add up;
* one-step problems: sums and differences of its `chain_sum` generator, told as a small story.

The second kind and the two worked examples before every question are there for the demo policy, which
has 135 million parameters: it solves some one-step problems and hardly any others, so that pass rates
are neither all 0 nor all 1.

Rows look like those that verl's preprocessing of GSM8K makes, except that the instruction is a system
message and that the examples are turns of the conversation. data_source is `openai/gsm8k`, so that the
same scorer applies: the number after the last `####`. The same seed gives the same bytes.

Run it from the root of the project, in an environment with the `dev` extra::

    python scripts/make_gsm_symbolic.py
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DEFAULT_OUT = Path(__file__).resolve().parents[1] / "data" / "gsm_symbolic"
SEED = 20250607
ROWS_PER_DIFFICULTY = 128
FILES = {"train-00000.parquet": 104, "train-00001.parquet": 104, "test.jsonl": 48}

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Answer with a calculation, then "####" and the number.'
EXAMPLES = (
    ("Sam has 8 pens and loses 5 of them. How many pens does Sam have left?", "8 - 5 = 3\n#### 3"),
    ("Kim has 6 eggs and buys 5 more. How many eggs does Kim have now?", "6 + 5 = 11\n#### 11"),
)

# Templates of gsm_symbolic whose questions read well and whose solutions are exact. Left out are those
# that round silently, that are ambiguous, or that give odd quantities (ages below zero, 1,030 puppies).
TEMPLATES = (1, 9, 12, 13, 16, 26, 30, 34, 39, 43, 55, 56, 57, 62, 71, 72, 78, 83)
GSM_SUFFIX = " Give the result as your final answer. Do not include units."

NAMES = ("Amina", "Ben", "Carla", "David", "Elif", "Hana", "Jonas", "Maya", "Nora", "Omar", "Priya", "Tom")
THINGS = ("apples", "books", "buttons", "coins", "marbles", "oranges", "pencils", "shells", "stickers")
STORIES = {
    "+": (
        "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
        "{name} has {a} {things} and gets {b} more from a friend. How many {things} does {name} have now?",
        "{name} has {a} {things} and finds {b} more. How many {things} does {name} have in total?",
    ),
    "-": (
        "{name} has {a} {things} and gives {b} of them to a friend. How many {things} does {name} have left?",
        "{name} has {a} {things} and loses {b} of them. How many {things} does {name} have left?",
        "{name} has {a} {things} and sells {b} of them. How many {things} does {name} have left?",
    ),
}

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("question", pa.string()),
                    ("answer", pa.string()),
                    ("kind", pa.string()),
                ]
            ),
        ),
    ]
)


@dataclass(frozen=True)
class Problem:
    """A question, its worked answer (which ends with ``#### <integer>``), and what made it."""

    question: str
    answer: str
    kind: str

    @property
    def ground_truth(self) -> str:
        """The integer after ``####`` without thousands separators, as verl's preprocessing takes it."""
        found = re.search(r"#### (-?[0-9,]+)$", self.answer)
        if found is None:
            raise ValueError(f"no `#### <integer>` at the end of {self.answer!r}")
        return found[1].replace(",", "")


def multi_step(seed: int) -> Iterator[Problem]:
    """Problems of the chosen `gsm_symbolic` templates, as many as there are."""
    from reasoning_gym import create_dataset

    problems = create_dataset("gsm_symbolic", seed=seed, size=20 * ROWS_PER_DIFFICULTY)
    for template, entry in zip(problems.task_indices, problems, strict=True):
        if template in TEMPLATES:
            question = entry["question"].removesuffix(GSM_SUFFIX)
            yield Problem(question, entry["metadata"]["answer_cot"], f"gsm_symbolic/{template}")


def one_step(seed: int) -> Iterator[Problem]:
    """Sums and differences of `chain_sum` told as stories, as many as there are; a few have two digits."""
    from reasoning_gym import create_dataset

    rng = Random(seed)
    sizes = {1: 18 * ROWS_PER_DIFFICULTY, 2: 2 * ROWS_PER_DIFFICULTY}
    entries = [
        entry
        for digits, size in sizes.items()
        for entry in create_dataset(
            "chain_sum", seed=seed, size=size, min_terms=2, max_terms=2, min_digits=digits, max_digits=digits
        )
    ]
    rng.shuffle(entries)
    for entry in entries:
        a, sign, b = entry["metadata"]["expression"].split()
        least = 2 if sign == "+" else int(b) + 1
        if int(b) < 2 or int(a) < least:
            continue
        question = rng.choice(STORIES[sign]).format(
            name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b
        )
        result = entry["answer"]
        yield Problem(question, f"{a} {sign} {b} = {result}\n#### {result}", f"chain_sum/{len(b)}")


def first_distinct(problems: Iterator[Problem], count: int) -> list[Problem]:
    """The first `count` problems whose questions differ."""
    chosen: dict[str, Problem] = {}
    for problem in problems:
        chosen.setdefault(problem.question, problem)
        if len(chosen) == count:
            return list(chosen.values())
    raise ValueError(f"only {len(chosen)} distinct problems, {count} are needed")


def to_messages(question: str) -> list[dict[str, str]]:
    """The conversation that the policy continues: instruction, worked examples, question."""
    messages = [{"role": "system", "content": INSTRUCTION}]
    for example, answer in EXAMPLES:
        messages += [{"role": "user", "content": example}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": question}]


def to_row(problem: Problem, split: str, index: int) -> dict[str, Any]:
    """One row in verl's schema; the key order is that of the file."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": to_messages(problem.question),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
        "extra_info": {
            "split": split,
            "index": index,
            "question": problem.question,
            "answer": problem.answer,
            "kind": problem.kind,
        },
    }


def make(out: Path, seed: int = SEED) -> None:
    """Write the files of the dataset into the folder `out`."""
    problems = first_distinct(multi_step(seed), ROWS_PER_DIFFICULTY)
    problems += first_distinct(one_step(seed), ROWS_PER_DIFFICULTY)
    Random(seed).shuffle(problems)
    out.mkdir(parents=True, exist_ok=True)
    left = iter(problems)
    written = {"train": 0, "test": 0}
    for name, count in FILES.items():
        split = "test" if name.startswith("test") else "train"
        first = written[split]
        rows = [to_row(next(left), split, index) for index in range(first, first + count)]
        written[split] += count
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), out / name)
        else:
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            (out / name).write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample dataset of word problems.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the folder to write (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    make(arguments.out, arguments.seed)
    print(f"made {sum(FILES.values())} rows in {arguments.out}")


if __name__ == "__main__":
    main()
