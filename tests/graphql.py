"""What the web server's GraphQL says, asked as the UI asks it."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
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


def wait_until(what: str, look: Callable[[], T], seconds: float, done: Callable[[T], bool] = bool) -> T:
    """What `look` returns once that is `done`; after `seconds`, the test fails and shows what came last."""
    end = time.monotonic() + seconds
    last: object = "nothing asked"
    while time.monotonic() < end:
        try:
            found = look()
            if done(found):
                return found
            last = found
        except urllib.error.HTTPError as error:  # 500 while the code server is not up
            last = f"{error}: {error.read().decode(errors='replace')}"
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {seconds} s; the last answer: {str(last)[:3000]}")


ENDED = ("SUCCESS", "FAILURE", "CANCELED")

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

    def one_has_ended(found: list[dict[str, Any]]) -> bool:
        return any(run["status"] in ENDED for run in found)

    found = wait_until(f"a finished run tagged {tags}", lambda: runs(address, **tags), seconds, one_has_ended)
    return [run for run in found if run["status"] in ENDED][-1]


def events(address: str, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a run."""
    found: list[dict[str, Any]] = ask(address, EVENTS, run=run["runId"])["logsForRun"]["events"]
    return found
