"""Which ground truths verl's built-in scorers accept, by data_source.

verl chooses a scorer by the exact name of the source (and by the prefix `aime`); a scorer that is given a
ground truth of another type than it reads mostly returns 0 without a word.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec

SOURCE_PREFIX = "aime"
_GSM8K_NUMBER = re.compile(r"-?[0-9.]+")
_GSM8K_LONGEST = 300 - len("#### ")  # the answer is looked for in the last 300 characters
# How pandas, numpy, Python and JSON write a value that is missing.
_MISSING = frozenset({"nan", "NaN", "NAN", "<NA>", "NaT", "None", "null"})

Check = Callable[[Any], str | None]


def _text(truth: Any) -> str | None:
    return None if type(truth) is str else "text"


def _text_or_number(truth: Any) -> str | None:
    return None if type(truth) in (str, int, float) else "text or a number"


def _search_targets(truth: Any) -> str | None:
    target = truth.get("target") if type(truth) is dict else None
    if type(target) is str or (type(target) is list and target and all(type(t) is str for t in target)):
        return None
    return 'an object {"target": text or a list of texts}'


def _test_cases(truth: Any) -> str | None:
    if type(truth) is str:
        try:
            truth = msgspec.json.decode(truth)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            truth = None
    if type(truth) is dict and ({"inputs", "outputs"} <= truth.keys() or "assert_case" in truth):
        return None
    return "an object (or its JSON text) with `inputs` and `outputs`, or with `assert_case`"


_SOURCES: dict[str, str] = {
    "gsm8k": "openai/gsm8k",
    "math": "lighteval/MATH DigitalLearningGmbH/MATH-lighteval HuggingFaceH4/MATH-500",
    "math_dapo": "math_dapo math math_dapo_reasoning",
    "prime_math": (
        "numina_aops_forum numina_synthetic_math numina_amc_aime numina_synthetic_amc numina_cn_k12"
        " numina_olympiads"
    ),
    "code": "codecontests apps codeforces taco",
    "geo3k": "hiyouga/geometry3k",
    "search_r1": (
        "searchR1_nq searchR1_triviaqa searchR1_popqa searchR1_hotpotqa searchR1_2wikimultihopqa"
        " searchR1_musique searchR1_bamboogle"
    ),
}
_FAMILIES = {source: family for family, sources in _SOURCES.items() for source in sources.split()}
KNOWN_SOURCES = tuple(_FAMILIES)
"""The data_sources that verl's built-in scorers read, `aime…` aside."""
_TRUTHS: dict[str, Check] = {
    "gsm8k": _text,
    "math": _text,
    "math_dapo": _text,
    "prime_math": _text_or_number,
    "code": _test_cases,
    "geo3k": _text,
    "search_r1": _search_targets,
}


@lru_cache(1024)
def similar_source(source: str) -> str | None:
    """The known data_source that was probably meant, such as `openai/gsm8k` for `gsm8k`; None without one."""
    word = source.lower()
    for known in _FAMILIES:
        if known.lower() == word or known.lower().rpartition("/")[2] == word:
            return known
    return next(iter(get_close_matches(source, _FAMILIES, n=1, cutoff=0.7)), None)


def scorer_family(source: str) -> str | None:
    """Name of the scorer that verl's built-in table has for this data_source, or None: `gsm8k`, `math`,
    `math_dapo`, `prime_math`, `code`, `geo3k` or `search_r1`."""
    return _FAMILIES.get(source) or ("math_dapo" if source.startswith(SOURCE_PREFIX) else None)


def has_scorer(source: str) -> bool:
    """Whether verl's built-in table has a scorer for this data_source."""
    return scorer_family(source) is not None


def expected_truth(source: str, truth: Any) -> str | None:
    """What the built-in scorer of `source` expects instead of `truth`; None where it takes it (or where
    no built-in scorer reads the source)."""
    family = scorer_family(source)
    return _TRUTHS[family](truth) if family else None


def is_blank(source: str, truth: Any) -> bool:
    """Whether the built-in scorer of `source` is given a text that says nothing: an empty one, or what is
    left of a missing value that was made text (`nan`, `None`). It matches no answer; in mathematics the empty
    box, and in searches an answer without words."""
    family = scorer_family(source)
    if family == "search_r1" and type(truth) is dict:
        target = truth.get("target")
        return all(_says_nothing(each) for each in (target if type(target) is list else [target]))
    return family is not None and _says_nothing(truth)


def is_unreachable(source: str, truth: Any) -> bool:
    """Whether no response can score: the gsm8k scorer reads digits, periods and a minus sign, takes commas
    out of them (but not out of the ground truth), and compares text."""
    return (
        scorer_family(source) == "gsm8k"
        and type(truth) is str
        and (_GSM8K_NUMBER.fullmatch(truth) is None or len(truth) > _GSM8K_LONGEST)
    )


def _says_nothing(truth: Any) -> bool:
    if type(truth) is str:
        return not truth or truth in _MISSING or truth.isspace()
    return type(truth) is float and truth != truth
