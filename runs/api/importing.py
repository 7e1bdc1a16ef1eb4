"""Import logs of other libraries in notebooks and scripts: `grpobench.import_logs`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from grpobench.runs.tools import strict as words
from grpobench.runs.tools.deferred import deferred
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.runs.api.results import Results
    from grpobench.runs.handover.importing.importing import Imported

Source: TypeAlias = str | os.PathLike[str]


def import_logs(
    source: Source | Sequence[Source],
    out: str | os.PathLike[str],
    *,
    format: str = "",
    map: Mapping[str, str] | None = None,
    arm: str = "",
    task: str = "",
    seed: int | None = None,
    experiment: str = "",
    strict: bool = False,
    beside: Sequence[str | os.PathLike[str]] = (),
) -> Results:
    """Turn other libraries' logs into run folders in `out`, as ``grpobench import`` does, and load them.

    `source` is a log, a folder of one, a folder of such folders, or several of these. `format` is one of trl,
    verl, openrlhf, wandb, tensorboard, csv and jsonl; by default each log's format is detected. `map` gives
    our name for a metric of theirs: ``{"score": "reward/mean", "it": "step"}``; ``"acc/100"`` is the column
    `acc` divided by 100. `arm`, `task` and `seed` apply to everything that is imported; by default names of
    folders and the logs give them. `experiment` is the name of the experiment; the default is the name of
    `out`. `beside` are experiments of ours whose runs are copied into `out`. `Results.alarms` lists what was
    left out. Warns about a name in `map` that no log has.

    Raises ConfigError for a wrong argument, an unknown metric and a missing package; DataError if nothing can
    be read and, with `strict`, if anything is damaged.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    imported = import_runs(
        [Path(path) for path in sources],
        Path(out),
        form=format,
        maps=[f"{theirs}={ours}" for theirs, ours in (map or {}).items()],
        arm=arm,
        task=task,
        seed=seed,
        experiment=experiment,
        strict=strict,
        beside=[Path(folder) for folder in beside],
    )
    for theirs in imported.unused:
        warnings.warn(f"map: no log has {theirs!r}", stacklevel=2)
    from grpobench.runs.api.results import load

    return load(out)


def import_runs(
    sources: Sequence[Path],
    out: Path,
    *,
    form: str,
    maps: Iterable[str],
    arm: str,
    task: str,
    seed: int | None,
    **options: Any,
) -> Imported:
    """What `import_logs` and the command line do: `maps` are texts as after ``--map``, and `options` further
    fields of `ImportRequest`."""
    with deferred("torch"):  # The catalog's algorithms import it; nothing here uses it.
        from grpobench.runs.handover.importing.folder import KeyOverrides
        from grpobench.runs.handover.importing.importing import ImportRequest, carry_out
        from grpobench.runs.handover.importing.sources import FORMATS
        from grpobench.runs.handover.importing.translate import mapping

    if form and form not in FORMATS:
        did = words.did_you_mean(form, FORMATS, f"known: {', '.join(FORMATS)}", "{!r}")
        raise ConfigError([f"format: unknown format {form!r}; {did}"])
    mapped, overrides = mapping(maps), KeyOverrides(arm, task, seed)
    return carry_out(ImportRequest(sources, out, form, mapped, overrides, **options))
