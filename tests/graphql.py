"""What the web server's GraphQL says, asked as the UI asks it."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def ask(address: str, query: str, **variables: Any) -> Any:
    """The `data` of an answer; errors of the query fail the test."""
    request = urllib.request.Request(
        f"{address}/graphql",
        data=json.dumps({"query": query, "variables": variables}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert not answer.get("errors"), answer["errors"]
    return answer["data"]


def wait_until(what: str, look: Callable[[], T | None], seconds: float) -> T:
    """What `look` returns as soon as it returns something; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(urllib.error.HTTPError):  # 500 while the code server is not up
            if found := look():
                return found
        time.sleep(0.5)
    raise AssertionError(f"{what}: nothing within {seconds} s")


RUNS = """query($tags: [ExecutionTag!]) { runsOrError(filter: {tags: $tags}) { ... on Runs {
  results { runId status tags { key value } } } } }"""

EVENTS = """query($run: ID!) { logsForRun(runId: $run, limit: 1000) { ... on EventConnection { events {
  __typename
  ... on MaterializationEvent { assetKey { path } }
  ... on AssetCheckEvaluationEvent { evaluation { assetKey { path } checkName success } }
} } } }"""


def runs(address: str, **tags: str) -> list[dict[str, Any]]:
    """The runs with all of the tags (`schedule_name` is Dagster's `dagster/schedule_name`)."""
    wanted = [{"key": f"dagster/{name}", "value": value} for name, value in tags.items()]
    found: list[dict[str, Any]] = ask(address, RUNS, tags=wanted)["runsOrError"]["results"]
    return found


def finished_run(address: str, seconds: float, **tags: str) -> dict[str, Any]:
    """The first run with these tags, once it has ended."""

    def look() -> dict[str, Any] | None:
        ended = [run for run in runs(address, **tags) if run["status"] in ("SUCCESS", "FAILURE", "CANCELED")]
        return ended[-1] if ended else None

    return wait_until(f"a finished run tagged {tags}", look, seconds)


def events(address: str, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a run."""
    found: list[dict[str, Any]] = ask(address, EVENTS, run=run["runId"])["logsForRun"]["events"]
    return found
