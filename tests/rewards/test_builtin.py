"""Built-in scorers: what they take for the answer, and when it is right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.contract.scorers import expected_truth
from rl_assets.rewards.builtin import (
    compute_score,
    has_builtin,
    last_boxed,
    math_equal,
    perfect_answer,
)

GSM8K, MATH, DAPO, GEO, SEARCH = (
    "openai/gsm8k",
    "lighteval/MATH",
    "math_dapo",
    "hiyouga/geometry3k",
    "searchR1_nq",
)

TRUTHS = {
    GSM8K: "72",
    MATH: r"\frac{1}{2}",
    "DigitalLearningGmbH/MATH-lighteval": r"\text{(C)}",
    "HuggingFaceH4/MATH-500": r"(3, \pi)",
    DAPO: "34",
    "math_dapo_reasoning": "-7",
    "aime24": "033",
    "numina_cn_k12": 3.5,
    "numina_olympiads": r"x^2 + 1",
    GEO: r"2 \sqrt { 3 }",
    SEARCH: {"target": ["The Beatles", "Beatles"]},
    "searchR1_musique": {"target": "1066"},
}


def score(source: str, solution: str, truth: object) -> float:
    return compute_score(source, solution, truth)["score"]


@pytest.mark.parametrize("source", TRUTHS)
def test_the_perfect_answer_scores_one_and_an_empty_one_does_not(source: str) -> None:
    truth = TRUTHS[source]
    assert expected_truth(source, truth) is None
    assert score(source, perfect_answer(source, truth), truth) == 1.0
    assert score(source, "", truth) <= 0.0


@pytest.mark.parametrize("source", TRUTHS)
def test_every_source_gives_the_same_keys(source: str) -> None:
    right = compute_score(source, perfect_answer(source, TRUTHS[source]), TRUTHS[source])
    wrong = compute_score(source, "no answer here", TRUTHS[source])
    assert list(right) == list(wrong) == ["score", "acc", "pred"]
    assert (right["acc"], wrong["acc"]) == (True, False)
    assert wrong["pred"] is None


@pytest.mark.parametrize("source", ["apps", "codecontests", "codeforces", "taco", "Rowan/hellaswag", ""])
def test_a_source_that_needs_a_service_or_is_unknown_is_refused_by_name(source: str) -> None:
    assert not has_builtin(source)
    with pytest.raises(NotImplementedError, match=f"data_source='{source}'"):
        compute_score(source, "print(1)", "1")
    with pytest.raises(NotImplementedError, match=f"data_source='{source}'"):
        perfect_answer(source, "1")


@pytest.mark.parametrize(
    ("solution", "truth", "expected"),
    [
        ("It is\n#### 72", "72", 1.0),
        ("#### 1 and then #### 72", "72", 1.0),
        ("#### 72 and then #### 1", "72", 0.0),
        ("#### 1,000", "1000", 1.0),
        ("#### -7", "-7", 1.0),
        ("#### 72.0", "72", 0.0),
        ("#### 72.", "72", 0.0),
        ("####72", "72", 0.0),
        ("the answer is 72", "72", 0.0),
        ("#### 72" + "." * 400, "72", 0.0),
        ("#### 72", 72, 0.0),
    ],
)
def test_gsm8k_takes_the_last_number_after_four_hashes(solution: str, truth: object, expected: float) -> None:
    assert score(GSM8K, solution, truth) == expected


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}", 1.0),
        (r"so $\boxed{0.5}$", 1.0),
        (r"so \boxed{\dfrac12}", 1.0),
        (r"\boxed{3} no, \boxed{1/2}", 1.0),
        (r"\boxed{1/2} no, \boxed{3}", 0.0),
        (r"\boxed{", 0.0),
        ("1/2", 0.0),
    ],
)
def test_math_compares_the_last_box_by_value(solution: str, expected: float) -> None:
    assert score(MATH, solution, r"\frac{1}{2}") == expected


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        ("Answer: 34", 1.0),
        ("Answer: $34$", 1.0),
        (r"Answer: \boxed{34}", 1.0),
        ("answer : 34\nAnswer: 35", -1.0),
        (r"I get \boxed{34}", 1.0),
        (r"\boxed{34}" + "." * 120, -1.0),
        ("Answer: 34" + "." * 400, -1.0),
        ("34", -1.0),
    ],
)
def test_dapo_takes_the_answer_line_and_then_a_box_near_the_end(solution: str, expected: float) -> None:
    assert score(DAPO, solution, "34") == expected


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        (r"<think>hm</think>\boxed{2\sqrt{3}}", 1.0),
        (r"\boxed{2\sqrt{3}}", 0.9),
        (r"<think>hm</think>\boxed{9}", 0.1),
        ("9", 0.0),
    ],
)
def test_geometry_weighs_the_answer_nine_to_one_against_the_form(solution: str, expected: float) -> None:
    assert score(GEO, solution, r"2\sqrt{3}") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        ("<answer>the beatles!</answer>", 1.0),
        ("<answer>Stones</answer><answer> Beatles </answer>", 1.0),
        ("<answer>Beatles</answer><answer>Stones</answer>", 0.0),
        ("<answer>The Beatles band</answer>", 0.0),
        ("<answer>Beatles</answer>" * 10, 1.0),
        ("<answer>Beatles</answer>" * 11, 0.25),
        ("Beatles", 0.0),
    ],
)
def test_search_compares_the_last_answer_without_case_articles_and_punctuation(
    solution: str, expected: float
) -> None:
    assert score(SEARCH, solution, {"target": ["The Beatles"]}) == expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("1,000", "1000", True),
        ("3.0", "3", True),
        (r"x=5", "5", True),
        ("(1,2)", "(2,1)", False),
        ("?", "3", False),
    ],
)
def test_mathematics_is_compared_by_value(one: str, other: str, equal: bool) -> None:
    assert math_equal(one, other) is equal


balanced = st.recursive(
    st.text("ab1 "), lambda inner: st.lists(inner).map(lambda xs: "{" + "".join(xs) + "}")
)


@given(balanced, st.text(), st.text("xyz}"))
def test_a_box_holds_what_its_braces_enclose(content: str, before: str, after: str) -> None:
    assert last_boxed(f"{before}\\boxed{{{content}}}{after}") == content


@settings(deadline=None)
@given(st.text(), st.sampled_from([GSM8K, DAPO, SEARCH]))
def test_no_response_is_an_error(solution: str, source: str) -> None:
    assert compute_score(source, solution, TRUTHS[source])["score"] in (-1.0, 0.0, 1.0)
