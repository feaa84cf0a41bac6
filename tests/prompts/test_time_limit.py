"""A chat template that does not come to an end stops the gate with its name, whatever keeps it busy."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_assets.errors import InputError
from rl_assets.media.source import MediaSource
from rl_assets.prompts import apart, time_limit
from rl_assets.prompts.multimodal import MediaRenderer
from rl_assets.prompts.render import PromptRenderer
from tests.prompts import media, processors
from tests.prompts.families import FAMILIES
from tests.prompts.processors import tokenizer

ASK = [{"role": "user", "content": "2 + 2?"}]
COPY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SQUARES = (
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"
    "{{ ns.x % 2 }}"
)
WITHOUT_END = {
    "loops": LOOPS,
    "loops that write": LOOPS.replace("{% for b", "x{% for b"),
    "loops over a content": "{% for a in messages[0].content * 1 %}" + LOOPS + "{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a power": "{{ 9 ** (9 ** 9) }}",
    "squares of squares": SQUARES,
    "a number that is rounded": "{{ 1 | round(999999999, 'ceil') }}",
}


def test_a_forked_process_has_a_watcher_whatever_its_parent_was_at() -> None:
    """One that is forked while the parent's watcher looks must not wait for it for ever."""
    looks, looked = threading.Event(), threading.Event()

    def look() -> None:
        with time_limit._lock:
            looks.set()
            looked.wait(0.3)

    watcher = threading.Thread(target=look)
    watcher.start()
    looks.wait()
    child = os.fork()
    if not child:
        with time_limit.time_limit(ASK):
            os._exit(0)
    watcher.join()
    until = time.monotonic() + 5
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < until:
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time_limit, "SECONDS", 0.6)
    monkeypatch.setattr(apart, "SECONDS", 2.0)
    yield
    assert not time_limit._running


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", sorted(WITHOUT_END))
def test_a_template_without_end_is_named(kind: str, fast: bool) -> None:
    policy = tokenizer(COPY + WITHOUT_END[kind])
    policy.name_or_path = "acme/slow"
    start = time.monotonic()
    with pytest.raises(InputError) as stopped:
        PromptRenderer(policy, fast=fast).render([[{"role": "system", "content": "a"}, *ASK]])
    assert time.monotonic() - start < 60
    assert "acme/slow" in str(stopped.value)
    assert "does not come to an end within" in str(stopped.value)
    assert "roles: system, user" in str(stopped.value)


@pytest.mark.parametrize("slow", [LOOPS, "{{ (m.content | length) ** (9 ** 9) }}"])
def test_a_template_that_is_slow_with_one_prompt_alone_is_named(slow: str) -> None:
    """Nothing that was tried before would have shown it."""
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.content == 'now' %}" + slow + "{% endif %}{% endfor %}"
    )
    renderer = PromptRenderer(tokenizer(template))
    assert all(rendered.ids for rendered in renderer.render([ASK] * 5))
    with pytest.raises(InputError, match="does not come to an end"):
        renderer.render([ASK, [{"role": "user", "content": "now"}]])
    assert renderer.render([ASK])[0].ids


def test_it_is_named_in_another_thread_too() -> None:
    renderer = PromptRenderer(tokenizer(COPY + LOOPS))
    with ThreadPoolExecutor(1) as threads, pytest.raises(InputError, match="does not come to an end"):
        threads.submit(renderer.render, [ASK]).result()


@pytest.mark.parametrize("slow", [LOOPS, WITHOUT_END["a power"]])
def test_a_template_of_a_processor_without_end_is_named(tmp_path: Path, slow: str) -> None:
    (tmp_path / "a.png").write_bytes(media.png(30, 30))
    processor = processors.qwen2_5_vl()
    processor.chat_template += slow
    renderer = MediaRenderer(processor, MediaSource(tmp_path, "."))
    with pytest.raises(InputError, match="does not come to an end"):
        renderer.render([media.row("<image>?", images=["a.png"])])


def test_a_template_that_multiplies_says_the_same_in_a_process_of_its_own() -> None:
    template = COPY + "{{ messages | length * 2 }}{{ 10 ** 2 }}"
    plain = tokenizer(template)
    renderer = PromptRenderer(plain)
    assert renderer.template.apart is not None
    (rendered,) = renderer.render([ASK])
    assert plain.decode(rendered.ids) == "user: 2 + 2?\n2100"
    renderer.verify(ASK, None, rendered.ids)


@pytest.mark.parametrize(
    "huge",
    [
        "{{ 'x' * 10**9 }}",
        "{{ 'x' * 10**11 }}",
        "{{ 'x' * 20000000 }}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{% set ns = namespace(t='x' * 2) %}{% for a in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}"
        "{{ ns.t | length }}",
        "{{ ('x' * 10**10) | length }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ 'x'.ljust(9999999999) }}",
    ],
)
def test_a_template_that_asks_for_a_huge_text_is_named(huge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "SECONDS", 60.0)
    policy = tokenizer(COPY + huge)
    policy.name_or_path = "acme/huge"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"acme/huge.*needs more memory for one prompt"):
        PromptRenderer(policy).render([ASK])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB, of this process


def test_a_long_prompt_is_not_taken_for_one_there() -> None:
    """What is long is the row's own text: the gate measures it."""
    template = "{{ 2 * 2 }}{{ messages[0].content }}{{ messages[0].content }}"
    long = [{"role": "user", "content": "ab " * 4_000_000}]
    renderer = PromptRenderer(tokenizer(template))
    assert renderer.template.apart is not None
    texts, refused, *_ = renderer.texts([long])
    assert (len(texts[0]), refused) == (1 + 2 * 12_000_000, {})


def test_what_it_refuses_there_is_said_as_it_is_here() -> None:
    template = COPY + "{{ 2 * 2 }}{{ raise_exception('Not a role') if messages[0].role == 'tool' }}"
    refused, kept = PromptRenderer(tokenizer(template)).render([[{"role": "tool", "content": "a"}], ASK])
    assert (refused.code, refused.error) == ("render.template_error", "Not a role")
    assert kept.ids


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_family_needs_a_process_of_its_own(family: str) -> None:
    assert PromptRenderer(tokenizer(FAMILIES[family])).template.apart is None


def test_a_thread_that_only_waits_is_not_ended() -> None:
    """A machine that is busy with other things takes no time of a template."""
    with time_limit.time_limit(ASK):
        time.sleep(1.5)


def test_a_limit_that_is_over_is_over() -> None:
    """Whatever follows a prompt that took almost too long is not ended for it."""
    for _ in range(40):
        try:
            with time_limit.time_limit(ASK):
                end = time.thread_time() + 0.9
                while time.thread_time() < end:
                    pass
        except time_limit.TooSlowError:
            break
    for _ in range(200_000):
        pass
