"""Tasks spread over processes: of this machine, or of a Ray cluster where one is named.

What a worker holds between tasks (a loaded policy, a renderer) is made once by a setup, in the worker. Tasks
are taken as they are needed and results come in the order of their tasks, so a stream of batches is never
held whole, and what is written from the results does not depend on how many workers there were.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from rl_assets.base.progress import Log
from rl_assets.base.workers.local import spread_here
from rl_assets.base.workers.pool import CLUSTER, Result, Setup, Task


def spread(
    setup: "Setup[Task, Result]", tasks: Iterable[Task], places: Sequence[str], log: Log
) -> Iterator[Result]:
    """Results of the tasks, in their order, as they become ready.

    Args:
        setup: called once per worker with its place and a log; a context manager that gives the function
            which does a task. Where there are several workers it, the tasks and the results are pickled.
        tasks: what is to be done.
        places: where to work, such as torch devices: one worker each. One place is this process itself. On
            a Ray cluster there is a worker for every GPU where the first place is a CUDA device (or ``auto``
            and there are GPUs), and for every CPU otherwise.
        log: receives the lines of all workers.

    Raises:
        BrokenProcessPool: a worker of this machine was killed. (On Ray its task is done again elsewhere.)
    """
    tasks = iter(tasks)
    if (first := next(tasks, None)) is None:
        return
    tasks = itertools.chain([first], tasks)
    if address := os.environ.get(CLUSTER):
        from rl_assets.base.workers.ray import spread_on_ray

        yield from spread_on_ray(address, setup, tasks, places[0], log)
    elif len(places) == 1:
        with setup(places[0], log) as work:
            yield from map(work, tasks)
    else:
        yield from spread_here(setup, tasks, places, log)
