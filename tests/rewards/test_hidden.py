"""The texts of `reward_kwargs` are not seen: in no error, no value, no printed line and no message."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.errors import InputError
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.hidden import Hidden
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.scoring import score_table
from tests.rewards.builders import input_table, reward_input

SECRETS = [
    "sk-live-4711",
    "k9",
    "pw1",
    "hunter2",
    "ünï'cö\"de\\",
    "two\nlines of it",
    "it's",
    "a" * 40,
    "💩key",
    " padded-key \n",
    "Bearer abc/def+ghi==",
]
FORMS = {
    "as it is": lambda text: text,
    "glued": lambda text: f"key={text}&x",
    "repr": repr,
    "ascii": ascii,
    "twice": lambda text: repr(repr(text)),
    "json": json.dumps,
    "json in json": lambda text: json.dumps(json.dumps({"k": text})),
    "bytes": lambda text: repr(text.encode()),
    "url": lambda text: f"https://h/?k={quote(text, safe='')}",
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "stripped": str.strip,
}
NESTED = {
    "plain": lambda text: {"token": text},
    "dict": lambda text: {"token": {"a": {"b": text}}},
    "list": lambda text: {"token": [1, [text, None]]},
    "bytes": lambda text: {"token": text.encode("latin-1", errors="replace")},
    "key": lambda text: {"token": {f"{text}!": 1}},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_message_shows_a_text_in_no_form(secret: str, form: str) -> None:
    for nest in ("plain", "dict", "list"):
        shown = Hidden(NESTED[nest](secret)).message(f"ValueError: {FORMS[form](secret)} is no key")
        assert FORMS[form](secret) not in shown
        assert secret.strip() not in shown
        assert "(token)" in shown
        assert shown.startswith("ValueError:")


@pytest.mark.parametrize("nest", NESTED)
def test_a_text_is_found_wherever_it_is(nest: str) -> None:
    assert "sk-live" not in Hidden(NESTED[nest]("sk-live-4711")).message("no sk-live-4711! here")


@pytest.mark.parametrize(
    ("text", "message", "shown"),
    [
        ("1", "index 10 of 11 is not in 1", "index 10 of 11 is not in (mode)"),
        ("a", "a bad apple", "(mode) bad apple"),
        ("on", "only one on", "only one (mode)"),
        ("100", "1000 > 100", "1000 > (mode)"),
        (",", "1, 2, 3", "1, 2, 3"),
        ("", "all is well", "all is well"),
        (" ", "all is well", "all is well"),
        ("exact", "KeyError: 'exact'", "KeyError: '(mode)'"),
    ],
)
def test_a_message_stays_readable_beside_short_texts(text: str, message: str, shown: str) -> None:
    assert Hidden({"mode": text}).message(message) == shown


def test_names_numbers_and_switches_are_no_secrets() -> None:
    hidden = Hidden({"weights": {"format": 0.5, "answer": 1, "strict": True, "none": None}})
    message = "KeyError: 'format' (0.5, 1, True, None)"
    assert hidden.message(message) == message


def test_values_are_data_in_which_a_common_text_stays() -> None:
    hidden = Hidden({"mode": "1", "key": ["sk-live-4711"], "seed": "42"})
    assert hidden.value(
        {"pred": "1", "n": [42, "42"], "sent": {"Authorization: sk-live-4711": "sk-live-4711"}}
    ) == {
        "pred": "1",
        "n": [42, "42"],
        "sent": {"Authorization: (key)": "(key)"},
    }


@given(st.text(min_size=4).filter(lambda text: any(map(str.isalnum, text))), st.text(), st.text())
def test_no_text_of_four_characters_is_seen(secret: str, before: str, after: str) -> None:
    secret = f"§{secret}§"
    assert secret not in Hidden({"name": [secret]}).message(f"{before}{secret}{after}")


LEAKS = r"""
import json, os, sys
def compute_score(solution_str, auth, **_):
    key = auth["keys"][0]
    if solution_str == "raise": raise ValueError(f"401 for {key}")
    if solution_str == "raise dict": raise KeyError(json.dumps(auth))
    if solution_str == "exit": sys.exit(f"bad {key}")
    if solution_str == "note":
        error = ValueError("x"); error.add_note(key); raise error
    if solution_str == "mute": raise type("E", (Exception,), {"__str__": lambda self: key})()
    if solution_str == "return": return key
    if solution_str == "long": return ["x" * 70 + key]
    if solution_str == "no score": return {key: 1, "auth": auth}
    if solution_str == "values": return {"score": 1, "auth": auth, key: key, "n": [key]}
    if solution_str == "print": print("calling with", key); print(auth, file=sys.stderr); return 1
    if solution_str == "die": print("dying with", key, flush=True); os._exit(3)
    return 1
"""


@pytest.mark.parametrize("secret", ["sk-live-4711", "k9", "hunter2", "ünï'cö\"de"])
def test_no_table_line_or_log_shows_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], secret: str
) -> None:
    (tmp_path / "leaks.py").write_text(LEAKS)
    kwargs: dict[str, Any] = {"auth": {"keys": [secret], "strict": True}}
    solutions = ["raise", "raise dict", "exit", "note", "mute", "return", "long", "no score", "values"]
    solutions += ["print", "die", ""]
    inputs = input_table(tmp_path, [reward_input(0, n, text) for n, text in enumerate(solutions)])
    pool = ScorePool(RewardFunction(str(tmp_path / "leaks.py"), kwargs=kwargs), workers=1)
    lines: list[str] = []
    table = score_table(inputs, pool, folder=tmp_path, log=lines.append)
    rows = table.read().to_pylist()
    assert [row["score"] for row in rows] == [None] * 8 + [1.0, 1.0, None, 1.0]
    assert rows[0]["error"] == "ValueError: 401 for (auth)"
    output = capfd.readouterr()
    assert "calling with (auth)" in output.err
    assert "dying with (auth)" in output.err
    for text in (repr(rows), repr(table.schema), repr(lines), output.out, output.err, repr(pool)):
        for form in (secret, repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]):
            assert form not in text


def test_a_file_that_cannot_be_loaded_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no connection with k9-key')")
    function = RewardFunction(str(tmp_path / "broken.py"), kwargs={"auth": ["k9-key"]})
    with pytest.raises(InputError) as refusal:
        ScorePool(function, workers=1).require_loadable()
    assert "k9-key" not in str(refusal.value)
    assert "(auth)" in str(refusal.value)
