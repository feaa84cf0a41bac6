"""A reward function costs its own response, whatever it does, and what it starts ends with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.outcome import Scored, call
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.worker import answer, described, read, serve

HOSTILE = r"""
import asyncio, gc, multiprocessing, os, resource, signal, subprocess, sys, threading, time

LOOP = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nmark = %r\nwhile True: time.sleep(0.01)"

class Mute(Exception):
    def __str__(self): raise RuntimeError("not telling")

class Big(int): pass

def _square(x): return x * x

def child(mark, **how):
    return subprocess.Popen([sys.executable, "-c", LOOP % mark], **how)

def hang():
    while True:
        try: time.sleep(1)
        except BaseException: pass

def compute_score(data_source, solution_str, ground_truth, extra_info, mark=""):
    do, _, what = solution_str.partition(" ")
    if do == "raise": raise eval(what)
    if do == "run": exec(what, {**globals(), "mark": mark}); return 1.0
    if do == "return": return eval(what)
    return float(solution_str)
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Callable[..., ScorePool]:
    (tmp_path / "hostile.py").write_text(HOSTILE)

    def pool(timeout: float = 1.0, workers: int = 1) -> ScorePool:
        kwargs = {"mark": str(tmp_path)}
        return ScorePool(RewardFunction(str(tmp_path / "hostile.py"), kwargs=kwargs), timeout, workers)

    return pool


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """Processes that carry the mark of this test; those that are left at its end are ended."""

    def marked() -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if str(tmp_path).encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                pass
        return [pid for pid in found if pid != os.getpid()]

    yield marked
    for pid in marked():
        os.kill(pid, signal.SIGKILL)


def score(pool: ScorePool, *solutions: str) -> list[Scored]:
    return list(pool.score(("s", text, '"72"', "{}") for text in solutions))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("SystemExit(3)", "SystemExit: 3"),
        ("SystemExit()", "SystemExit"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("GeneratorExit", "GeneratorExit"),
        ("BaseException('all')", "BaseException: all"),
        ("asyncio.CancelledError('x')", "CancelledError: x"),
        ("Mute", "Mute, whose text cannot be read (RuntimeError)"),
        ("MemoryError", "MemoryError"),
        ("UnicodeDecodeError('utf8', b'\\xff', 0, 1, 'no \\ud800')", "UnicodeDecodeError: 'utf8' codec"),
        ("ValueError('\\udc00')", "ValueError: ?"),
    ],
)
def test_what_it_raises_is_the_error_of_its_response(
    hostile: Callable[..., ScorePool], error: str, said: str
) -> None:
    before, one, after = score(hostile(), "1", f"raise {error}", "2")
    assert (before.score, after.score) == (1.0, 2.0)
    assert one.score is None
    assert one.error is not None
    assert one.error.startswith(said)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os._exit(0)", "died: the scoring process ended with exit code 0"),
        ("os._exit(7)", "died: the scoring process ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "died: the scoring process ended with exit code -9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died: the scoring process ended with exit code -11"),
        ("os.abort()", "died: the scoring process ended with exit code -6"),
        ("os.closerange(3, 4096)", "died: the scoring process"),
        (
            "os.kill(os.getppid(), signal.SIGKILL); hang()",
            "died: the scoring process ended with exit code -9",
        ),
        (
            "for fd in range(3, 64):\n try: os.write(fd, b'x' * 64)\n except OSError: pass",
            "died: the scoring process closed its connection",
        ),
    ],
)
def test_its_death_is_told_at_once(hostile: Callable[..., ScorePool], code: str, error: str) -> None:
    start = time.monotonic()
    before, one, after = score(hostile(timeout=60), "1", f"run {code}", "2")
    assert (before.score, after.score) == (1.0, 2.0)
    assert one.score is None
    assert one.error is not None
    assert one.error.startswith(error)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "code",
    [
        "for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)\nhang()",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); hang()",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "input(); hang()",
        "9 ** 9 ** 9 % 7",
        "asyncio.run(asyncio.sleep(99))",
    ],
    ids=["ignores signals", "blocks signals", "stops", "waits for input", "in C", "sleeps"],
)
def test_what_does_not_end_costs_its_time_and_no_more(hostile: Callable[..., ScorePool], code: str) -> None:
    start = time.monotonic()
    one, after = score(hostile(timeout=0.5), f"run {code}", "2")
    assert after.score == 2.0
    assert one.error in ("timeout: no score within 0.5 s", "EOFError: EOF when reading a line")
    assert time.monotonic() - start < 10


def test_many_that_ignore_signals_cost_their_limit_and_no_more(hostile: Callable[..., ScorePool]) -> None:
    start = time.monotonic()
    results = score(hostile(timeout=0.5, workers=2), *["run signal.signal(15, signal.SIG_IGN); hang()"] * 20)
    assert {result.error for result in results} == {"timeout: no score within 0.5 s"}
    assert time.monotonic() - start < 5 + 20


@pytest.mark.parametrize(
    "code",
    [
        "child(mark)",
        "child(mark).wait()",
        "child(mark, start_new_session=True)",
        "subprocess.run(['sh', '-c', 'exec \"$0\" -c \"$1\" & wait', sys.executable, LOOP % mark])",
        "os.system(f'(setsid {sys.executable} -c \"{LOOP % mark}\" &)')",
        "[child(mark) for _ in range(20)]; os._exit(3)",
        "[child(mark, start_new_session=True, env={}) for _ in range(3)]; hang()",
        "threading.Thread(target=child(mark).wait).start()",
    ],
    ids=["left", "waited for", "new session", "of a shell", "orphan", "many and dies", "no env", "thread"],
)
def test_what_it_starts_ends_with_it(
    hostile: Callable[..., ScorePool], left: Callable[[], list[int]], code: str
) -> None:
    one, after = score(hostile(), f"run {code}", "2")
    assert after.score == 2.0
    assert one.score == 1.0 or one.error is not None
    assert left() == []


def test_what_it_starts_ends_when_the_program_is_killed(
    hostile: Callable[..., ScorePool], left: Callable[[], list[int]], tmp_path: Path
) -> None:
    hostile()
    code = (
        "from rl_assets.rewards.function import RewardFunction\n"
        "from rl_assets.rewards.pool import ScorePool\n"
        f"function = RewardFunction({str(tmp_path / 'hostile.py')!r}, kwargs={{'mark': {str(tmp_path)!r}}})\n"
        "sample = 's', 'run child(mark, start_new_session=True).wait()', '1', '{}'\n"
        "list(ScorePool(function, 60, 1).score([sample]))"
    )
    program = subprocess.Popen([sys.executable, "-c", code])
    while len(left()) < 2:
        time.sleep(0.05)
        assert program.poll() is None
    program.kill()
    program.wait()
    until = time.monotonic() + 10
    while left() and time.monotonic() < until:
        time.sleep(0.05)
    assert left() == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_may_use_a_pool_of_its_own_functions(hostile: Callable[..., ScorePool], method: str) -> None:
    code = (
        f"pool = multiprocessing.get_context('{method}').Pool(2)\n"
        "import hostile\n"
        "assert pool.map(hostile._square, range(3)) == [0, 1, 4]\n"
        "pool.terminate()"
    )
    (one,) = score(hostile(timeout=30), f"run {code}")
    assert (one.score, one.error) == (1.0, None)


@pytest.mark.parametrize(
    "code",
    [
        "os.chdir('/')",
        "os.mkdir(mark + '/gone'); os.chdir(mark + '/gone'); os.rmdir(mark + '/gone')",
        "os.environ.clear()",
        "os.environ['PATH'] = '/nowhere'",
        "sys.setrecursionlimit(60)",
        "signal.setitimer(signal.ITIMER_REAL, 0.01)",
        "signal.alarm(1)",
        "sys.stdout.close(); sys.stderr.close()",
        "os.close(1); os.close(2)",
        "sys.stdin = sys.stdout = sys.stderr = None",
        "sys.argv.clear()",
    ],
)
def test_what_it_changes_is_as_before_for_the_next(hostile: Callable[..., ScorePool], code: str) -> None:
    look = "return dict(score=1, cwd=os.getcwd(), env=dict(os.environ), limit=sys.getrecursionlimit())"
    before, _, _, after = score(hostile(), look, f"run {code}", "run time.sleep(0.1)", look)
    assert before.score == 1.0
    assert after == before


def test_threads_that_it_leaves_cost_no_other_response(hostile: Callable[..., ScorePool]) -> None:
    busy = "def spin():\n while True: pass\n[threading.Thread(target=spin).start() for _ in range(30)]"
    _, slow, after = score(hostile(timeout=2), f"run {busy}", "run [_square(n) for n in range(10**6)]", "2")
    assert (slow.score, after.score) == (1.0, 2.0)


def test_a_fork_of_its_process_answers_nothing(hostile: Callable[..., ScorePool]) -> None:
    results = score(hostile(), "run os.fork()", "2", "3")
    assert [result.score for result in results] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 10**8)",
        "[print(n) for n in range(300_000)]",
        "os.write(1, b'\\xff\\x00' * 100_000)",
        "sys.stderr.write('\\n' * 10**6)",
    ],
)
def test_what_it_prints_is_bounded(
    hostile: Callable[..., ScorePool], code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    one, after = score(hostile(timeout=30), f"run {code}", "2")
    assert (one.score, after.score) == (1.0, 2.0)
    out, err = capfd.readouterr()
    assert out == ""
    assert "(more was printed, and is not shown)" in err
    assert len(err) < 1 << 18


def test_what_it_prints_is_shown(
    hostile: Callable[..., ScorePool], capfd: pytest.CaptureFixture[str]
) -> None:
    score(hostile(), "run print('one'); print('two', file=sys.stderr, flush=True)")
    assert sorted(capfd.readouterr().err.split()) == ["one", "two"]


def test_memory_runs_out_for_it_first(hostile: Callable[..., ScorePool]) -> None:
    look = "return dict(score=1, first=open('/proc/self/oom_score_adj').read())"
    assert score(hostile(), look)[0].extra == {"first": "1000\n"}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers().map(lambda n: n**40)
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)) | st.integers(), inner)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    VALUES | st.dictionaries(st.text(st.characters(codec=None)) | st.integers() | st.just("score"), VALUES)
)
def test_every_result_is_a_finite_score_or_a_reason(value: Any) -> None:
    scored = call(lambda **_: value, {}, "s", "t", "g", {})
    assert (scored.score is None) != (scored.error is None)
    for text in (scored.error or "", *scored.extra):
        text.encode()
    assert len(scored.error or "") <= 500
    back, left = read(answer(scored, True))
    assert left
    assert repr(back) == repr(scored)


def test_a_process_whose_answer_nobody_reads_ends_without_a_word() -> None:
    function = RewardFunction(None, "compute_score", {})
    with ThreadPoolExecutor(1) as thread:
        ours, theirs = Pipe()
        served = thread.submit(serve, theirs, described(function))
        assert ours.poll(60)
        ours.close()
        assert served.result(60) is None
