"""Tool schemas come from verl's file form, whole or not at all."""

from pathlib import Path

import pytest

from rl_assets.errors import InputError
from rl_assets.prompts.tools import load_tool_schemas

VERL_FILE = """
tools:
  - class_name: verl.tools.gsm8k_tool.Gsm8kTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: calc_gsm8k_reward
        description: null
        parameters:
          type: object
          properties:
            answer: {type: string, description: The answer., enum: null}
          required: [answer]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tools.yaml"
    path.write_text(text)
    return path


def test_schemas_are_read_without_unset_fields(tmp_path: Path) -> None:
    assert load_tool_schemas(written(tmp_path, VERL_FILE)) == [
        {
            "type": "function",
            "function": {
                "name": "calc_gsm8k_reward",
                "parameters": {
                    "type": "object",
                    "properties": {"answer": {"type": "string", "description": "The answer."}},
                    "required": ["answer"],
                },
            },
        }
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools: [", "not YAML"),
        ("[]", "expected a list of tools"),
        ("tools: {}", "expected a list of tools"),
        ("tools:\n  - class_name: x.Y\n", r"tools\[0\].tool_schema"),
    ],
)
def test_a_file_that_is_not_of_that_form_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_tool_schemas(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml.*no such file"):
        load_tool_schemas(tmp_path / "absent.yaml")
