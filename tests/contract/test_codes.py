"""The table of codes drives the rules, the page and the command; none of them says more or less."""

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

import rl_assets
from rl_assets.cli.codes import codes_page
from rl_assets.contract.rules.code import Finding
from rl_assets.contract.rules.codes import CODES, by_precedence
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.contract.rules.scorers import KNOWN_SOURCES, similar_source
from rl_assets.errors import InputError
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.conftest import ROOT
from tests.contract.rows import judge, row

PACKAGE = Path(rl_assets.__file__).parent
SHAPE = re.compile(
    r"(?:file|row|text|value|prompt|media|reward_model|data_source|ability|agent_name|extra_info|uid|render)\.[a-z0-9_]+"
)


def named_in_code() -> set[str]:
    """Every string in the package, the table aside, that is shaped like a code and not like a path."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        if file.name in ("codes.py", "codes_of_rows.py", "codes_of_prompts.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SHAPE.fullmatch(node.value):
                found.add(node.value)
    return found


PATHS = {
    "extra_info.index",
    "extra_info.tools_kwargs",
    "reward_model.ground_truth",
}


def test_every_code_has_a_rule_and_every_rule_a_code() -> None:
    built = {"reward_model.not_an_object", "extra_info.not_an_object"}
    named = named_in_code() - PATHS
    assert named - set(CODES) == set()
    assert set(CODES) - named == built


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/reject-codes.md").read_text() == codes_page(), "run `rl-assets codes --markdown`"


def test_every_code_is_on_the_page_once() -> None:
    page = codes_page()
    assert all(page.count(f"| `{code}`") == 1 for code in CODES)


def settings(model: type[BaseModel], above: str = "") -> set[str]:
    """The dotted path of every setting of a YAML."""
    found = set()
    for name, field in model.model_fields.items():
        found.add(above + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= settings(field.annotation, f"{above}{name}.")
    return found


def test_a_setting_that_a_remedy_names_exists_and_is_named_with_its_section() -> None:
    paths = settings(DataToRolloutSpec)
    bare = {
        path.rsplit(".", 1)[-1] for path in paths if "_" in path
    } | ContractOptions.__dataclass_fields__.keys()
    named = 0
    for code, rule in CODES.items():
        for quoted in re.findall(r"`([^`]+)`", rule.remedy):
            setting = quoted.split(":")[0]
            assert setting not in bare, f"{code}: `{setting}` without its section"
            if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", setting):
                assert setting in paths, f"{code}: there is no setting `{setting}`"
                named += 1
    assert named > 8


def test_codes_are_dotted_lower_case_words() -> None:
    assert all(SHAPE.fullmatch(code) for code in CODES)
    assert all(
        rule.meaning.endswith((".", ")")) and rule.remedy.endswith((".", ")")) for rule in CODES.values()
    )


def test_a_rule_that_found_nothing_reports_zero(tmp_path: Path) -> None:
    result = judge(tmp_path, row())
    assert set(result.by_code.values()) | set(result.warnings.values()) == {0}
    assert set(result.by_code) | set(result.warnings) == set(CODES)
    assert set(result.by_code) == {code for code, rule in CODES.items() if rule.severity == "error"}


def test_a_row_is_named_after_the_error_that_comes_first_in_the_table() -> None:
    light, grave = Finding("uid.invalid", "uid", ""), Finding("prompt.missing", "prompt", "")
    assert by_precedence([light, grave]) == [grave, light]


def test_severities_can_be_chosen_for_some_codes(tmp_path: Path) -> None:
    orphan = row(prompt=[{"role": "user", "content": "What does <image> mean in HTML?"}])
    assert judge(tmp_path, orphan).by_code["media.orphan_placeholder"] == 1
    lenient = judge(tmp_path, orphan, severities={"media.orphan_placeholder": "warning"})
    assert (lenient.accepted_rows, lenient.warnings["media.orphan_placeholder"]) == (1, 1)
    assert "media.orphan_placeholder" not in lenient.by_code


@pytest.mark.parametrize(
    ("severities", "says"),
    [
        ({"prompt.mising": "warning"}, "the code 'prompt.mising'"),
        ({"prompt.missing": "warning"}, "always an error"),
        # No processor takes a prompt that has other placeholders than it has media.
        ({"render.media_lost": "warning"}, "always an error"),
        ({"data_source.unknown": "fatal"}, "expected `error` or `warning`"),
    ],
)
def test_other_severities_are_refused(severities: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        ContractOptions(severities=severities)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gsm8k", "openai/gsm8k"),
        ("GSM8K", "openai/gsm8k"),
        ("openai/gsm8", "openai/gsm8k"),
        ("geometry3k", "hiyouga/geometry3k"),
        ("MATH-500", "HuggingFaceH4/MATH-500"),
        ("my_own_task", None),
    ],
)
def test_an_unknown_source_is_told_which_was_probably_meant(written: str, meant: str | None) -> None:
    assert similar_source(written) == meant


def test_the_remedy_for_an_unknown_source_lists_the_known_ones_and_the_other_way() -> None:
    remedy = CODES["data_source.unknown"].remedy
    assert all(source in remedy for source in KNOWN_SOURCES)
    assert "reward.custom_reward_function" in remedy
