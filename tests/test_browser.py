"""The UI as a person uses it: a real Chromium against a real server and daemon."""

import os
import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

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

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not os.environ.get("CI"),
        reason="Chromium is not installed (Debian: apt-get install chromium)",
    ),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dagster_server(tmp_path_factory.mktemp("server"), "dagster", "dev", "-w", "workspace.yaml") as url:
        yield url


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser.new_page(viewport={"width": 1600, "height": 1000})
        browser.close()


def materialize(page: Page, address: str, asset: str, *, made_with_another: bool = False) -> None:
    """Press an asset's button, confirm what is made in the same step, and wait for the run's end."""
    page.goto(f"{address}/assets/{asset}")
    page.get_by_role("button", name=re.compile("Materialize$")).click()
    if made_with_another:
        page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text(re.compile(r"Launched run [0-9a-f]{8}"))).to_be_visible(timeout=30_000)
    page.get_by_text("View", exact=True).last.click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=180_000)


def test_an_asset_is_materialised_from_its_page_and_its_checks_pass(page: Page, address: str) -> None:
    materialize(page, address, "gsm_symbolic/raw_files")
    materialize(page, address, "gsm_symbolic/field_contract", made_with_another=True)
    page.goto(f"{address}/assets/gsm_symbolic/field_contract?view=checks")
    for check in ("placeholder_media", "rows_conserved", "uids"):
        page.get_by_text(check, exact=True).first.click()
        expect(page.get_by_text("Passed", exact=True).first).to_be_visible(timeout=30_000)


def test_a_newcomer_finds_the_rejects_with_their_codes(page: Page, address: str) -> None:
    materialize(page, address, "needs_care/raw_files")
    materialize(page, address, "needs_care/rejected_rows", made_with_another=True)
    page.goto(f"{address}/assets/needs_care/rejected_rows")
    expect(page.get_by_text("media.orphan_placeholder").first).to_be_visible(timeout=30_000)
    page.goto(f"{address}/assets/needs_care/rejected_rows?view=checks&checkDetail=media_rules")
    expect(page.get_by_text("Failed", exact=True).first).to_be_visible(timeout=30_000)
    expect(page.get_by_text("[media.orphan_placeholder]").first).to_be_visible(timeout=30_000)


def test_a_whole_dataset_is_materialised_from_its_graph(page: Page, address: str) -> None:
    page.goto(f"{address}/locations/rl_assets/asset-groups/needs_care/lineage")
    page.get_by_role("button", name=re.compile("Materialize all")).click()
    expect(page.get_by_text(re.compile(r"Launched run [0-9a-f]{8}"))).to_be_visible(timeout=30_000)
    page.get_by_text("View", exact=True).last.click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=300_000)
    page.goto(f"{address}/assets/needs_care/reward_inputs?view=checks")
    page.get_by_text("reward_fields_unchanged", exact=True).first.click()
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible(timeout=30_000)
