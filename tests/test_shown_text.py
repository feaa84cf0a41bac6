"""Text of users on screens: in the UI's Markdown, in plots and on a terminal it is shown and never obeyed."""

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rl_assets.base import markdown
from rl_assets.contract.files.manifest import RawFile, RawManifest
from rl_assets.errors import InputError, printable
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.display import histogram, wide_table
from rl_assets.spec.dataset import DataToRolloutSpec
from rl_assets.trainset.card import dataset_card
from rl_assets.trainset.export import Export, ExportedFile
from rl_assets.trainset.report import BuildReport, Snapshot, render_report
from tests.build import materialize, problem, write_jsonl
from tests.project import BIN

BEACON = "![](http://beacon.example/a.png)"
HOSTILE = [
    BEACON,
    "<img src=http://beacon.example/a.png>",
    "<script>alert(1)</script>",
    "[click](http://beacon.example/)",
    f"a | b |\n\n{BEACON}",
    f"a\r\r{BEACON}",
    f"a\u2028\u2028{BEACON}",
    f"````\n{BEACON}",
    f"`a` {BEACON} ``",
    f"&#33;[](http://beacon.example/a.png) \\{BEACON}",
    f"~~~\n{BEACON}",
]
"""Each would, as Markdown or HTML, have something fetched or run."""

TERMINAL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe"
WORDS = st.text(st.sampled_from(list("ab`|*_[]()!<>&#\\~-+$\n\r\t :/.{}")), max_size=30)


def rendered(text: str) -> str:
    """The HTML of Markdown as the UI reads it: with tables, and with what looks like HTML as HTML."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def tags(text: str) -> set[str]:
    return set(re.findall(r"<\s*/?\s*([a-z0-9]+)", rendered(text)))


def test_the_hostile_texts_are_hostile() -> None:
    harmless = {"p", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert [text for text in HOSTILE[:4] if tags(text) <= harmless] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_table_of_users_text_is_a_table_and_nothing_else(text: str) -> None:
    shown = wide_table([{"prompt": text, "uid": "0a"}], ["prompt", "uid"]).value
    assert tags(shown) == {"table", "thead", "tbody", "tr", "th", "td"}
    assert rendered(shown).count("<td>") == 2


@given(text=WORDS)
def test_escaped_text_shows_as_it_stands(text: str) -> None:
    cell = re.search(
        r"<td>(.*?)</td>", rendered(markdown.table(["a"], [[f"x{markdown.escape(text)}x"]])), re.S
    )
    assert cell is not None
    assert html.unescape(cell[1]) == f"x{' ⏎ '.join(text.splitlines())}x"


@given(text=WORDS)
@example(text=f"````\n{BEACON}")
def test_a_block_of_code_is_one_block(text: str) -> None:
    shown = rendered(markdown.code_block(f"x\n{text}", "python") + "\n\nafter")
    assert shown.count("<pre>") == 1
    assert shown.endswith("</code></pre>\n<p>after</p>\n")


@given(text=WORDS)
@example(text="`` | `")
def test_code_in_a_table_stays_in_its_cell(text: str) -> None:
    shown = rendered(markdown.table(["a", "b"], [[markdown.code(f"x{text}"), "end"]]))
    assert re.search(r"<td><code>[^<]*</code></td>\s*<td>end</td>", shown), shown


def assert_harmless(text: str, label: str = "") -> None:
    """Nothing but the plots has a source of its own, and nothing leads elsewhere."""
    assert "beacon" in text or not label
    shown = rendered(text)
    assert all(source.startswith("data:image/png;") for source in re.findall(r'<img[^>]*src="([^"]+)', shown))
    assert not tags(text) & {"script", "a", "iframe"}, label


def test_what_is_shown_of_rows_and_policy_has_no_markup_of_theirs(tmp_path: Path, policy: Path) -> None:
    """Prompts, sources, ground truths, names of columns and files, reward function and chat template."""
    copied = tmp_path / "policies/hostile"
    copied.mkdir(parents=True)
    for file in policy.iterdir():
        (copied / file.name).symlink_to(file)
    (copied / "chat_template.jinja").unlink()
    template = (policy / "chat_template.jinja").read_text()
    (copied / "chat_template.jinja").write_text(f"{template}{{#\n````\n{BEACON}\n#}}")
    (tmp_path / "score.py").write_text(
        f'"""\n````\n{BEACON}\n"""\ndef compute_score(**row):\n    return 1.0\n'
    )
    rows: list[dict[str, Any]] = [
        problem(
            number,
            data_source=f"{BEACON}<img src=x>$\\foo${number % 2}",
            prompt=[{"role": "user", "content": f"{BEACON} <img src=x> {TERMINAL}"}],
            reward_model={"style": "rule", "ground_truth": f"{BEACON}{number}"},
            **{BEACON: "a column"},
        )
        for number in range(3)
    ]
    name = "data/toy/![](http:beacon.example).jsonl"
    write_jsonl(tmp_path / name, [*rows, problem(9, data_source=BEACON, reward_model=BEACON)])
    settings = {
        "dataset": "toy",
        "data": {"train_files": name},
        "policy": {"path": "policies/hostile"},
        "reward": {"custom_reward_function": {"path": "score.py"}},
        "checks": {"reject_rate": {"max": 0.5}},
    }
    result = materialize(
        GraphDataset(DataToRolloutSpec.model_validate(settings), tmp_path),
        *("reward_function", "tokenizer", "raw_files", "field_contract", "rejected_rows"),
        *("length_filtered", "overlong_rows", "unrenderable_rows"),
    )
    assert result.success
    shown = {
        f"{event.asset_key.path[-1]}.{label}": value.value
        for event in result.get_asset_materialization_events()
        if event.asset_key
        for label, value in event.step_materialization_data.materialization.metadata.items()
        if isinstance(value, dg.MarkdownMetadataValue)
    }
    hostile = ("tokenizer.chat_template", "reward_function.code", "field_contract.preview")
    for label in (*hostile, "rejected_rows.examples", "length_filtered.preview"):
        assert_harmless(shown.pop(label), label)
    for text in shown.values():
        assert_harmless(text)


def test_a_card_has_no_markup_of_the_rows() -> None:
    file = ExportedFile(name="train.parquet", rows=1, bytes=1, digest="0a", json_columns=[f"`{BEACON}"])
    export = Export(
        files=[file],
        forms=[],
        stages=[],
        left_out={},
        sources={"train": dict.fromkeys(HOSTILE, 1)},
        parameters={"contamination_files": HOSTILE},
    )
    raw = [
        RawFile(path=f"`{text}", split="train", format="json", bytes=1, digest="0a", rows=1)
        for text in HOSTILE
    ]
    card = dataset_card(
        "toy", export, description=None, raw=RawManifest(files=raw), counts={}, rejects={}
    ).partition("\n---\n")[2]
    assert_harmless(card, "card")


def test_a_report_has_no_markup_of_prompts_and_answers() -> None:
    def snapshot(rate: float) -> Snapshot:
        sources = {f"train · {text}": {"all_failed": 0, "mixed": rate, "all_solved": 0} for text in HOSTILE}
        rates = {f"{number}": rate for number in range(len(HOSTILE))}
        whole = {name: {**values, "mean_pass_rate": rate} for name, values in sources.items()}
        return Snapshot(counts={}, rejects={}, lengths={}, sources=whole, policy="", pass_rates=rates)

    samples = {
        f"{number}": {"prompt": text, "solution_str": text, "score": 1} for number, text in enumerate(HOSTILE)
    }
    report = BuildReport(current=snapshot(1.0), previous=snapshot(0.0))
    assert_harmless(render_report("toy", report, plot=None, samples=samples, limit=20), "report")


def test_a_source_that_looks_like_a_formula_is_plotted() -> None:
    for name in ("$\\foo$", "a$b$c", "$", "x" * 5000, TERMINAL):
        assert histogram({name: [1, 2]}, "length").value.startswith("![length](data:image/png;base64,")


def test_a_terminal_shows_what_it_would_obey(tmp_path: Path) -> None:
    rows = [
        problem(1, data_source=TERMINAL, uid=f"{TERMINAL}_"),
        problem(2, prompt=[{"role": TERMINAL, "content": f"<image id={TERMINAL}>"}], images=[TERMINAL]),
        problem(
            3, prompt=[{"role": "user", "content": f"<image id={TERMINAL}>"}], images=[f"{TERMINAL}.png"]
        ),
        problem(4, prompt=[{"role": "user", "content": "?"}], extra_info={TERMINAL: float("nan")}),
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    for arguments in (["check", "rows.jsonl"], ["check", f"{TERMINAL}.jsonl"], ["codes", TERMINAL]):
        done = subprocess.run([BIN / "rl-assets", *arguments], cwd=tmp_path, capture_output=True, text=True)
        shown = done.stdout + done.stderr
        assert done.returncode in (1, 2), shown
        assert "\\x1b" in shown or "\\u001b" in shown
        assert printable(shown) == shown


def test_an_error_shows_what_a_terminal_would_obey() -> None:
    message = str(InputError(file=TERMINAL, found=TERMINAL, remedy="Fix it.\n"))
    assert printable(message) == message
    assert "\\x1b]0;title\\x07" in message
    assert json.loads(json.dumps(message)) == message
