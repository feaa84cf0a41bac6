"""Built-in scorers: what they take for the answer, and when it is right."""

import pickle
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.contract.rules.scorers import expected_truth, is_unreachable
from rl_assets.rewards.builtin import compute_score, has_builtin, perfect_answer
from rl_assets.rewards.math_value import math_equal
from rl_assets.rewards.verl_text import last_boxed

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
    assert list(right) == list(wrong) == ["score", "acc", "pred", "lenient_acc"]
    assert (right["acc"], wrong["acc"]) == (True, False)
    assert (right["lenient_acc"], wrong["lenient_acc"]) == (True, False)
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
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"2\pi", r"2*\pi", True),
        ("10^{6}", "1,000,000", True),
        (r"\sqrt{8}", r"2\sqrt2", True),
        (r"50\%", "50", True),
        ("14.0 - 1.0i", "14-i", True),
        ("14-i", "14.0 - 1.0i", True),
        ("0 < x < 12.5", "(0, 12.5)", True),
        ("6.62e-34", r"6.62 \times 10^{-34}", True),
        ("1e400", "10^{400}", True),
        (r"\infty", r"-\infty", False),
        ("12:00", "1:00", False),
        ("n=1, 2, 3", "n=2, 3, 4", False),
        ("D = (0, 1.5)", "D = (0, 1)", False),
        (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}", False),
    ],
)
def test_mathematics_is_compared_by_value(one: str, other: str, equal: bool) -> None:
    assert math_equal(one, other) is equal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
        ("0.0000001", "0.0000002"),
        ("6.62e-34", "6.63e-34"),
        ("1e-400", "1e-401"),
        ("0.333333", r"\frac{1}{3}"),
        ("0.33333333333333333333", r"\frac{1}{3}"),
        ("3.14159265358979", r"\pi"),
        (r"\sqrt{2} \cdot 10^{-30}", r"\sqrt{2} \cdot 10^{-31}"),
        ("(0, 0.0000001)", "(0, 0.0000002)"),
        (r"\{0.0000001\}", r"\{0.0000002\}"),
        ("x + 0.0000001", "x + 0.0000002"),
        ("x < 0.0000001", "x < 0.0000002"),
        (r"\begin{pmatrix}0.0000001\end{pmatrix}", r"\begin{pmatrix}0.0000002\end{pmatrix}"),
        ("10^{10^{10}}", "10^{10^{11}}"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
    ],
)
def test_distinct_values_are_not_rounded_into_one(one: str, other: str) -> None:
    assert not math_equal(one, other)
    assert not math_equal(other, one)
    assert math_equal(one, f"{one} ")


decimals = st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**6), max_value=10**6)


@settings(deadline=None, max_examples=60)
@given(decimals, decimals | st.just(None), st.sampled_from(["{}", r"\frac{{{}}}{{7}}", "{} + 0", r"{} \pi"]))
def test_numbers_are_equal_where_their_values_are(one: Decimal, other: Decimal | None, form: str) -> None:
    other = one if other is None else other
    answer, truth = form.format(f"{one:f}"), form.format(f"{other:.15f}")
    assert math_equal(answer, truth) is (one == other)


@pytest.mark.parametrize(
    ("source", "solution", "truth"),
    [
        (DAPO, "Answer: 34.", "34"),
        (DAPO, "**Answer: 34**", "34"),
        (DAPO, "thus \\boxed{" + "1+" * 50 + "1}", "51"),
        (DAPO, "so \\boxed{34}\n" + "I checked the sum and the parity. " * 4, "34"),
        (MATH, r"\boxed{34.}", "34"),
        (MATH, r"so \boxed 5.", "5"),
        (MATH, r"so \fbox{5}", "5"),
        (MATH, "The answer is **1/2**.", r"\frac{1}{2}"),
        (MATH, r"Therefore \(x = 7\).", "7"),
        (GSM8K, "#### 1,000.", "1000"),
        (GSM8K, "#### $72", "72"),
        (GSM8K, "#### 72.0", "72"),
        (GSM8K, "The answer is 72.", "72"),
        (GSM8K, r"\boxed{72}", "72"),
        (GSM8K, "#### 1/2", "1/2"),
        (SEARCH, "<answer>The Beatles band</answer>", {"target": "Beatles"}),
        (SEARCH, "It was the Beatles.", {"target": ["Stones", "the Beatles"]}),
    ],
)
def test_a_kinder_reading_is_told_beside_the_score(source: str, solution: str, truth: object) -> None:
    result = compute_score(source, solution, truth)
    assert (result["acc"], result["lenient_acc"]) == (False, True)
    assert result["score"] <= 0.0


@pytest.mark.parametrize("source", [GSM8K, MATH, DAPO, GEO])
@pytest.mark.parametrize(
    "solution", ["", "#### 35.", "**Answer: 340**", r"\boxed{0.34}", "34, or rather 35", "."]
)
def test_a_kinder_reading_is_no_blind_one(source: str, solution: str) -> None:
    assert compute_score(source, solution, "34")["lenient_acc"] is False


def test_a_result_is_a_dict_that_begins_with_its_score() -> None:
    result = compute_score(DAPO, "Answer: 1", "34")
    assert isinstance(result, dict)
    assert pickle.loads(pickle.dumps(result))[0] == result["score"] == -1.0
    for key in (1, False, "0", -1):
        with pytest.raises(KeyError):
            result[key]


def test_a_batch_is_scored_by_the_names_of_verls_batch_manager() -> None:
    results = compute_score(
        data_sources=[GSM8K, DAPO],
        solution_strs=["#### 72", "?"],
        ground_truths=["72", "34"],
        extra_infos=[{}, {}],
    )
    assert [result["score"] for result in results] == [1.0, -1.0]


@settings(max_examples=300)
@given(
    st.text("0123456789.,-/+$ a", min_size=1) | st.text(min_size=1) | st.integers(280, 320).map("1".__mul__)
)
def test_the_contract_says_of_a_ground_truth_what_the_scorer_makes_of_it(truth: str) -> None:
    scores = score(GSM8K, perfect_answer(GSM8K, truth), truth) == 1.0
    assert is_unreachable(GSM8K, truth) is not scores


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
