"""Which prompts a training set takes, and why it leaves the others out."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from sys import intern
from typing import Any, NamedTuple

from rl_assets.base.digests import digest_bytes
from rl_assets.base.tables import Table
from rl_assets.contract.rules.copies import COMPARED_COLUMNS, compared
from rl_assets.trainset.similar import Benchmark, Texts, contaminated, near_duplicates

Prompt = dict[str, Any]
"""A prompt under consideration: `uid`, `split`, `data_source`, `source_file`, `source_row`, and what it is
compared with others by (`Compared`): `copy`, `prompt`, `beside`, `media`."""

_COLUMNS = ("uid", "split", "data_source", "source_file", "source_row")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a training set is chosen by. Only train prompts are chosen; validation keeps all but its copies.

    Attributes:
        pass_rate: lowest and highest pass rate of a prompt that is taken, both included; None takes all.
        max_per_source: most prompts of a data_source: one number for all, or by name (others have no limit).
        seed: decides which prompts a limit takes.
        near_duplicates: similarity from which on a prompt is a copy of another; None compares none.
        contamination_ngram: words in a row that a prompt may not share with a benchmark.
    """

    pass_rate: tuple[float, float] | None = None
    max_per_source: int | Mapping[str, int] | None = None
    seed: int = 0
    near_duplicates: float | None = None
    contamination_ngram: int = 13


class LeftOut(NamedTuple):
    """A prompt that is not taken, and why."""

    prompt: Prompt
    reason: str
    detail: str


@dataclass
class Curated:
    """Prompts that are taken and prompts that are left out: together all that there were, each once.

    Attributes:
        taken: in the order of the rows.
        left_out: in the order in which the stages found them.
        stages: name of a stage, and how many prompts of each split were left after it.
    """

    taken: list[Prompt]
    left_out: list[LeftOut] = field(default_factory=list)
    stages: list[tuple[str, Counter[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._count("length_filtered")

    def leave_out(self, stage: str, verdicts: Mapping[str, tuple[str, str]]) -> None:
        """End a stage: leave out the prompts that have a verdict (reason and detail, by uid)."""
        self.left_out += [
            LeftOut(prompt, *verdicts[prompt["uid"]]) for prompt in self.taken if prompt["uid"] in verdicts
        ]
        self.taken = [prompt for prompt in self.taken if prompt["uid"] not in verdicts]
        self._count(stage)

    def _count(self, stage: str) -> None:
        self.stages.append((stage, Counter(prompt["split"] for prompt in self.taken)))

    def train(self) -> list[Prompt]:
        """The train prompts that are taken so far."""
        return [prompt for prompt in self.taken if prompt["split"] == "train"]


def read_prompts(rows: Table) -> list[Prompt]:
    """Every prompt of the length gate's rows, with what it is compared with others by.

    A prompt takes about 800 bytes of memory; its text is not among them.
    """
    prompts = []
    for row in rows.rows([*_COLUMNS, *(name for name in COMPARED_COLUMNS if name not in _COLUMNS)]):
        own, other = {key: row[key] for key in _COLUMNS}, compared(row)
        own |= {key: intern(value) for key, value in own.items() if isinstance(value, str)}
        same = {"copy": other.copy, "prompt": other.prompt, "beside": other.beside, "media": other.media}
        prompts.append(own | same)
    return prompts


def curate(
    prompts: Sequence[Prompt],
    selection: Selection,
    pass_rates: Mapping[str, float | None],
    texts: Texts = tuple,
    benchmark: Benchmark | None = None,
) -> Curated:
    """Choose the prompts of a training set.

    Args:
        prompts: all there are.
        selection: what they are chosen by.
        pass_rates: by uid; read where `selection` names a band.
        texts: of the prompts; read where they are compared with each other or with a benchmark.
        benchmark: what no train prompt may quote; None compares with none.
    """
    curated = Curated(list(prompts))
    curated.leave_out("duplicates", duplicates(curated.taken))
    if selection.pass_rate is not None:
        curated.leave_out("pass_rate", outside_band(curated.train(), selection.pass_rate, pass_rates))
    if selection.near_duplicates is not None:
        curated.leave_out("near_duplicates", _near_duplicates(curated, texts, selection.near_duplicates))
    if benchmark is not None:
        quoting = _contaminated(curated.train(), texts, benchmark, selection.contamination_ngram)
        curated.leave_out("contamination", quoting)
    if selection.max_per_source is not None:
        curated.leave_out(
            "max_per_source", over_limit(curated.train(), selection.max_per_source, selection.seed)
        )
    return curated


def duplicates(prompts: Iterable[Prompt]) -> dict[str, tuple[str, str]]:
    """Train prompts that are in validation, and copies of rows before them.

    A prompt is in validation when its messages and media are, whatever its ground truth and tools. A copy
    equals another row of its split in all that `Compared.copy` is made of.
    """
    verdicts: dict[str, tuple[str, str]] = {}
    validation: dict[bytes, Prompt] = {}
    seen: dict[tuple[str, bytes], Prompt] = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt["split"] == "train"):
        if prompt["split"] != "train":
            validation.setdefault(prompt["prompt"], prompt)
        elif (first := validation.get(prompt["prompt"])) is not None:
            verdicts[prompt["uid"]] = ("in_validation", f"same prompt as {_place(first)}")
            continue
        if (first := seen.setdefault((prompt["split"], prompt["copy"]), prompt)) is not prompt:
            verdicts[prompt["uid"]] = ("duplicate", f"copy of {_place(first)}")
    return verdicts


def _place(prompt: Prompt) -> str:
    return f"{prompt['source_file']}, row {prompt['source_row']}"


def _only(texts: Texts, uids: Collection[str]) -> Iterator[tuple[str, str]]:
    return ((uid, text) for uid, text in texts() if uid in uids)


def _near_duplicates(curated: Curated, texts: Texts, threshold: float) -> dict[str, tuple[str, str]]:
    """Train prompts that resemble a validation prompt, or a train prompt before them.

    Only prompts with the same media, tools, agent and template settings can: others ask something else.
    """
    prompts = {prompt["uid"]: prompt for prompt in curated.taken}
    alike = Counter(prompt["beside"] for prompt in prompts.values())
    looks = {uid: prompt["beside"] for uid, prompt in prompts.items() if alike[prompt["beside"]] > 1}
    validation = {uid for uid in looks if prompts[uid]["split"] == "val"}
    order = chain(_only(texts, validation), _only(texts, looks.keys() - validation))
    verdicts = {}
    for uid, (other, similarity) in near_duplicates(order, threshold, looks).items():
        if prompts[uid]["split"] == "train":
            verdicts[uid] = ("near_duplicate", f"{similarity:.0%} of it is in {_place(prompts[other])}")
    return verdicts


def _contaminated(
    train: Sequence[Prompt], texts: Texts, benchmark: Benchmark, n: int
) -> dict[str, tuple[str, str]]:
    """Train prompts that quote the benchmark; one with media, only if one of them is in the benchmark too."""
    media = {prompt["uid"]: prompt["media"] for prompt in train}
    quotes = contaminated(partial(_only, texts, media.keys()), benchmark.texts(), n)
    known = benchmark.media() if any(media[uid] for uid in quotes) else set()
    return {
        uid: ("contaminated", f"quotes {quote!r}")
        for uid, quote in quotes.items()
        if not media[uid] or not known.isdisjoint(media[uid])
    }


def outside_band(
    prompts: Iterable[Prompt], band: tuple[float, float], pass_rates: Mapping[str, float | None]
) -> dict[str, tuple[str, str]]:
    """Prompts whose pass rate is not in the band, or that have none."""
    low, high = band
    verdicts = {}
    for prompt in prompts:
        rate = pass_rates.get(prompt["uid"])
        if rate is None:
            verdicts[prompt["uid"]] = ("no_pass_rate", "no response to it was scored")
        elif rate < low:
            verdicts[prompt["uid"]] = ("too_hard", f"pass rate {rate:.3g}, at least {low:g} is asked")
        elif rate > high:
            verdicts[prompt["uid"]] = ("too_easy", f"pass rate {rate:.3g}, at most {high:g} is asked")
    return verdicts


def over_limit(
    prompts: Iterable[Prompt], limit: int | Mapping[str, int], seed: int
) -> dict[str, tuple[str, str]]:
    """Prompts beyond the limit of their data_source.

    Which ones is decided by a digest of seed and uid: an even sample, that stays the same when other rows
    come and go.
    """
    verdicts = {}
    taken: Counter[str] = Counter()
    for prompt in sorted(prompts, key=lambda prompt: digest_bytes(f"{seed} {prompt['uid']}".encode())):
        source = prompt["data_source"]
        most = limit if isinstance(limit, int) else limit.get(source)
        taken[source] += 1
        if most is not None and taken[source] > most:
            verdicts[prompt["uid"]] = ("over_limit", f"{most:,} prompts of {source} are taken")
    return verdicts
