"""The UI as a person uses it: a real Chromium against a real server and daemon.

Where `RL_ASSETS_SCREENSHOTS` names a folder, the pictures of the documentation are written there.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from rl_assets.base.tables import Table, TableWriter
from rl_assets.dataset.dataset import ASSETS
from tests.server import dagster_server

CHROMIUM = shutil.which("chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
GRAPH = "locations/rl_assets/asset-groups/needs_care/lineage"
SOON, RUN = 30_000, 300_000
"""How long a page, and a run, may take, in milliseconds."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not os.environ.get("CI"),
        reason="Chromium is not installed (Debian: apt-get install chromium)",
    ),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with dagster_server(home, "dagster", "dev", "-w", "workspace.yaml") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    return browser.new_page(viewport={"width": 1600, "height": 1000})


def picture(page: Page, name: str, **options: Any) -> None:
    """Keep a picture for the documentation, where that is wanted."""
    if folder := os.environ.get("RL_ASSETS_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", animations="disabled", **options)


def open_launched_run(page: Page, ends: str) -> None:
    """Follow the notice of a run that was just launched, and wait for its end."""
    expect(page.get_by_text(re.compile(r"Launched run [0-9a-f]{8}"))).to_be_visible(timeout=SOON)
    page.get_by_text("View", exact=True).last.click()
    expect(page.get_by_text(ends, exact=True).first).to_be_visible(timeout=RUN)


@pytest.fixture(scope="module")
def built(page: Page, address: str) -> str:
    """The server's address once the whole of needs_care was materialised from its graph."""
    page.goto(f"{address}/{GRAPH}")
    for asset in ASSETS:
        expect(page.get_by_text(asset, exact=True).first).to_be_visible(timeout=SOON)
    page.get_by_role("button", name="Materialize all").click()
    open_launched_run(page, "Success")
    return address


def test_a_dataset_is_materialised_from_its_graph_and_its_checks_go_green(page: Page, built: str) -> None:
    page.goto(f"{built}/assets/needs_care/reward_inputs?view=checks")
    expect(page.get_by_text("Succeeded", exact=True)).to_have_count(4, timeout=SOON)
    for check in ("groups", "reward_fields_unchanged", "rows_conserved", "uids"):
        page.get_by_text(check, exact=True).first.click()
        expect(page.get_by_text("Passed", exact=True).first).to_be_visible(timeout=SOON)


def test_the_graph_shows_what_was_made_and_what_was_found(browser: Browser, built: str) -> None:
    """On a screen so wide that the whole graph is shown with its details."""
    page = browser.new_page(viewport={"width": 4400, "height": 2700}, device_scale_factor=0.5)
    page.goto(f"{built}/{GRAPH}")
    expect(page.get_by_text("Materialized", exact=True)).to_have_count(len(ASSETS) + 3, timeout=SOON)
    expect(page.get_by_text("4 / 4 Passed").first).to_be_visible(timeout=SOON)
    navigation, tabs = 240, 160
    picture(
        page,
        "graph",
        clip={"x": navigation, "y": tabs, "width": 4400 - navigation - 80, "height": 2700 - tabs},
    )
    page.close()


def test_a_failing_check_leads_to_the_row(page: Page, built: str) -> None:
    page.goto(f"{built}/assets/needs_care/rejected_rows?view=checks&checkDetail=media_rules")
    expect(page.get_by_text("Failed", exact=True).first).to_be_visible(timeout=SOON)
    row = page.get_by_role("row").filter(has_text="[media.orphan_placeholder]").last
    expect(row).to_contain_text("data/needs_care/train.jsonl", timeout=SOON)
    expect(row).to_contain_text(re.compile(r"jsonl\s*31"))
    picture(page, "failing_check")


def test_the_rejects_are_listed_with_their_codes(page: Page, built: str) -> None:
    page.goto(f"{built}/assets/needs_care/rejected_rows")
    expect(page.get_by_text("media.orphan_placeholder").first).to_be_visible(timeout=SOON)


def test_the_histogram_of_lengths_is_a_picture(page: Page, built: str) -> None:
    page.goto(f"{built}/assets/needs_care/length_filtered")
    row = page.get_by_role("row").filter(has_text="prompt_lengths")
    row.get_by_text("[Show Markdown]").click()
    histogram = page.get_by_role("img", name="prompt length in tokens")
    expect(histogram).to_be_visible(timeout=SOON)
    assert histogram.evaluate("image => image.naturalWidth") > 300
    page.keyboard.press("Escape")


def test_the_columns_are_a_table_that_says_where_each_comes_from(page: Page, built: str) -> None:
    page.goto(f"{built}/assets/needs_care/reward_inputs")
    row = page.get_by_role("row").filter(has_text=re.compile("^columns"))
    row.get_by_text("[Show Markdown]").click()
    origin = page.get_by_role("row").filter(has_text="solution_str").filter(has_text="rollouts.responses")
    expect(origin.first).to_be_visible(timeout=SOON)
    page.keyboard.press("Escape")


def test_lineage_is_followed_upstream_to_the_raw_files(page: Page, built: str) -> None:
    page.goto(f"{built}/assets/needs_care/reward_inputs?view=lineage")
    expect(page.get_by_text("rollouts", exact=True).first).to_be_visible(timeout=SOON)
    page.goto(f"{built}/assets/needs_care/reward_inputs")
    for asset in ("rollouts", "proto_shards", "length_filtered", "field_contract", "raw_files"):
        page.get_by_role("link", name=re.compile(rf"needs_care\W+{asset}$")).first.click()
        expect(page).to_have_url(re.compile(f"/assets/needs_care/{asset}"), timeout=SOON)
    expect(page.get_by_text("data/needs_care/train.jsonl").first).to_be_visible(timeout=SOON)


def test_what_comes_after_a_failed_check_is_refused_also_when_it_is_started_alone(
    page: Page, built: str, home: Path
) -> None:
    contract = home / "storage/needs_care/field_contract.parquet"
    table = Table(contract)
    rows = list(table.rows())
    (row,) = (row for row in rows if row["images"])
    row["prompt"] = '[{"role":"user","content":"<image><image> What is it?"}]'
    with TableWriter(home / "damaged.parquet", table.schema) as writer:
        writer.write_rows(rows)
    (home / "damaged.parquet").rename(contract)
    page.goto(f"{built}/assets/needs_care/field_contract?view=checks&checkDetail=placeholder_media")
    page.get_by_role("button", name="Execute all").click()
    expect(page.get_by_text("2 `<image>` and 1 image").first).to_be_visible(timeout=RUN)
    page.goto(f"{built}/assets/needs_care/length_filtered")
    page.get_by_role("button", name=re.compile("Materialize$")).click()
    page.get_by_role("button", name="Confirm").click()
    open_launched_run(page, "Failure")
    refusal = page.get_by_text(re.compile("field_contract to pass its check placeholder_media"))
    expect(refusal.first).to_be_visible(timeout=SOON)
