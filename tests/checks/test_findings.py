"""What a check found, in words: the first problems whole, with their places, and how many more there are."""

from rl_assets.graph.checks.findings import Findings

ROW = {"uid": "a" * 32, "source_file": "data/toy/train.jsonl", "source_row": 3}


def test_the_first_problems_are_quoted_with_their_places() -> None:
    findings = Findings()
    findings.fail("no response of 'math' could be scored: ValueError: no", ROW)
    findings.fail("train: 3 prompts were to be sharded, and 2 were")
    assert findings.words().splitlines() == [
        "  data/toy/train.jsonl, row 3: no response of 'math' could be scored: ValueError: no",
        "  train: 3 prompts were to be sharded, and 2 were",
    ]


def test_of_many_problems_three_are_quoted_and_the_others_counted() -> None:
    findings = Findings()
    for number in range(2_000):
        findings.fail(f"problem {number}", ROW)
    *quoted, last = findings.words().splitlines()
    assert [line.rpartition(": ")[2] for line in quoted] == ["problem 0", "problem 1", "problem 2"]
    assert last == "  and 1,997 more: the check's table in the UI"


def test_a_problem_that_names_its_file_names_it_once() -> None:
    findings = Findings()
    findings.fail("score.py: field `x`: found y", {"source_file": "score.py"})
    assert findings.words() == "  score.py: field `x`: found y"


def test_a_long_value_is_cut_and_the_remedy_stays() -> None:
    findings = Findings()
    findings.fail(f"field `prompt`: found {'x' * 9_000}, expected a list. Store the list itself.", ROW)
    words = findings.words()
    assert len(words) < 700
    assert "row 3: field `prompt`: found xxx" in words
    assert words.endswith(", expected a list. Store the list itself.")


def test_a_problem_is_one_line_that_a_terminal_shows_as_it_stands() -> None:
    findings = Findings()
    findings.fail("two\nlines and \x1b[2J")
    assert findings.words() == "  two ⏎ lines and \\x1b[2J"
