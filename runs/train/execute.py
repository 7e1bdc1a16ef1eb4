"""A run from its configuration to its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from grpobench.runs.models.token_budgets import explain_out_of_memory
from grpobench.runs.observe.observers import Observers
from grpobench.runs.reward.verdict_file import NAME
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.determinism import deterministic
from grpobench.runs.tools.machine import reset_peak_memory
from grpobench.runs.train.base_evaluation import FOLDER as SHARED
from grpobench.runs.train.devices import ranks_of
from grpobench.runs.train.parts import build
from grpobench.runs.train.progress import Preempted, Progress, progress_reporter
from grpobench.runs.train.run_loop import carry
from grpobench.runs.train.stopping import Stopping
from grpobench.runs.train.trainer import Trainer


def execute(
    config: RunConfig, folder: RunFolder, report: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """Make a run, or continue it from its folder, to its end. Raises Preempted at the next safe point after
    `stop()` becomes true. A divergence is recorded as the run's result."""
    # A worker makes one run after another, and each reports a peak of its own.
    reset_peak_memory()
    deterministic(config.model.deterministic)
    # Monotonic, because the system's clock may jump.
    began = time.monotonic()
    stopping = Stopping(report, stop)
    with (
        explain_out_of_memory(),
        observed(config, folder) as observers,
        ranks_of(config, folder.threads, folder.note_out_of_memory) as ranks,
        stopping.heeded(ranks),
    ):
        tell = progress_reporter(stopping.report, config.train.steps)
        parts = build(config, tell, ranks=ranks, verdicts=folder.path.parent / SHARED / NAME)
        trainer = Trainer(config, parts, stopping.report, observers)
        stopping.altered = lambda: trainer.updater.begun
        try:
            with contextlib.closing(trainer.sampler):
                if config.train.backend == "trl":
                    # Imported here, because TRL need not be installed.
                    from grpobench.runs.train.trl import trainer as trl

                    trl.carry(trainer, folder, stop, began)
                else:
                    carry(trainer, folder, stop, began)
        finally:
            # It knows the trainer, which knows it by `report`: a cycle would keep the models of this run in
            # memory beside those of the next one, until the garbage is collected.
            stopping.altered = lambda: False


@contextlib.contextmanager
def observed(config: RunConfig, folder: RunFolder) -> Iterator[Observers]:
    """The run's callbacks. At the end they are called with the state in which it ended."""
    observers = Observers.start(config, folder)
    try:
        yield observers
    except Preempted:
        observers.end("preempted", "told to stop")
        raise
    except BaseException as error:
        observers.end("crashed", f"{type(error).__name__}: {error}")
        raise
    observers.end(folder.state, folder.why)
