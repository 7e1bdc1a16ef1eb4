"""Write the report of a matrix from its logs alone: one page that opens from disk, figures, tables, JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escape_html

from grpobench.analysis import critic, evaluations, figures, probes, summary, uniform
from grpobench.analysis.load import FINISHED, Matrix, load
from grpobench.analysis.power import POWER
from grpobench.analysis.scores import Comparison, seeds_needed, smallest_p
from grpobench.analysis.text import (
    NONE,
    count,
    interval,
    number,
    p_value,
    percent,
    points,
    signed,
    small,
    two,
)
from grpobench.analysis.visible import cell, json_text, visible

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
ALPHA = 0.05
LARGEST_SVG = 1_000_000
"""Characters of SVG beyond which the page embeds a PNG instead."""
SCREEN = 1.8
"""Screen pixels per point of a figure: a figure made for a 7 inch column fills the page."""
INTERVALS = (
    "it takes the differences as normal and its pair as the only one. The test does neither, and below the "
    "seeds needed it can never reject, so an interval may leave 0 out beside an unresolved difference."
)
"""Why an interval and a verdict may disagree, said wherever both are shown."""


@dataclass(frozen=True)
class Table:
    """A table as it is printed (strings) and as it is computed with (a frame)."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    frame: pd.DataFrame
    text_columns: int = 2
    """How many leading columns hold names, set flush left; `wide` columns at the end hold sentences."""
    wide: int = 0
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything that the report says, before it is laid out."""

    matrix: Matrix
    runs: pd.DataFrame
    compared: Sequence[Comparison]
    tables: Mapping[str, Table]
    settings: Sequence[summary.Setting]
    origins: Mapping[str, Sequence[tuple[str, int]]]
    pairing: summary.Pairing
    accounting: Mapping[str, int]
    """How many of the planned runs stand how."""
    alarms: Sequence[uniform.Alarm]
    curves: pd.DataFrame
    """What many samples tell, from `evaluations.sampling`."""


def write_report(
    folder: Path, formats: Sequence[str] = FORMATS, definitions: Mapping[str, str] | None = None
) -> Path:
    """Build `<folder>/report/` and return its index.html, or the report folder where html is not asked for.

    `definitions` are metric name -> definition, quoted in captions. Raises ValueError for an unknown format
    and LogError for logs that cannot be read.
    """
    demand_known(formats)  # before logs that may take long to read
    return write(gather(load(Path(folder))), formats, definitions)


def demand_known(formats: Sequence[str]) -> None:
    """Raises ValueError for a format that there is not, and for none at all."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"unknown report format {unknown}; choose from {', '.join(FORMATS)}")


def write(
    facts: Facts, formats: Sequence[str] = FORMATS, definitions: Mapping[str, str] | None = None
) -> Path:
    """`write_report` of what was gathered already."""
    demand_known(formats)
    place = facts.matrix.folder / "report"
    for part, suffixes in (("figures", ("pdf", "svg")), ("tables", ("csv", "tex"))):
        (place / part).mkdir(parents=True, exist_ok=True)
        for suffix in suffixes:  # what an earlier report left, which these logs may no longer support
            for stale in (place / part).glob(f"*.{suffix}"):
                stale.unlink()
    drawn = []
    if {"html", "pdf", "svg"} & set(formats):
        for drawing in figures.draw(facts.matrix, facts.runs, facts.compared, definitions, facts.curves):
            drawn.append(_figure(drawing, place / "figures", formats))
    for table in facts.tables.values():
        if "csv" in formats:
            safe = table.frame.map(cell).rename(columns=cell)
            safe.to_csv(place / "tables" / f"{table.name}.csv", index=False)
        if "tex" in formats:
            (place / "tables" / f"{table.name}.tex").write_text(tex(table), encoding="utf-8")
    if "json" in formats:
        text = json.dumps(plain(as_json(facts)), indent=1, allow_nan=False, ensure_ascii=False)
        (place / "report.json").write_text(json_text(text) + "\n", encoding="utf-8")
    if "html" not in formats:
        return place
    (place / "index.html").write_text(visible(_page(facts, drawn)), encoding="utf-8")
    return place / "index.html"


def gather(matrix: Matrix) -> Facts:
    """Compute every number of the report."""
    runs = summary.finals(matrix)
    compared = summary.comparisons(matrix, runs, ALPHA)
    records = evaluations.read(matrix)
    curves = evaluations.sampling(summary.sampled(matrix), records)
    made = [
        _accuracy(matrix, runs, "accuracy", "Final accuracy"),
        *_other_mode(matrix, runs),
        _comparisons(compared),
        *_aggregate(matrix, runs),
        _samples(curves, "pass"),
        _samples(curves, "maj"),
        _budgets(matrix),
        _equal_budgets(matrix),
        _costs(matrix),
        _gaps(matrix),
        _rewards(matrix),
        _critic(matrix),
        _bias(matrix),
        _probes(matrix, records),
        _later(records),
        _agreement(records),
        _statuses(matrix),
    ]
    return Facts(
        matrix=matrix,
        runs=runs,
        compared=compared,
        tables={table.name: table for table in made if table.rows},
        settings=summary.settings(matrix),
        origins=summary.origins(matrix),
        pairing=summary.pairing(matrix),
        accounting=summary.accounting(matrix, runs),
        alarms=uniform.alarms(matrix),
        curves=curves,
    )


# Tables


def _accuracy(matrix: Matrix, runs: pd.DataFrame, name: str, title: str, note: str = "") -> Table:
    frame = summary.accuracy_table(matrix, runs)
    rows = []
    for row in frame.to_dict("records"):
        own = runs[(runs["task"] == row["task"]) & (runs["arm"] == row["arm"])].sort_values("seed")
        rows.append(
            [
                row["task"],
                row["arm"],
                percent(row["base"]),
                percent(row["final"]),
                points(row["gain"]),
                interval(row["low"], row["high"]),
                "  ".join(_seed_text(run) for run in own.to_dict("records")),
                percent(row["validation_best"]),
                percent(row["validation_last"]),
            ]
        )
    header = ["task", "arm", "before", "after", "gain", "95% interval", "each seed", "val. best", "val. last"]
    where = " and ".join(
        dict.fromkeys(
            f"{r['split']} split, {summary.decoding(matrix, r['mode'])}" for r in frame.to_dict("records")
        )
    )
    if not note:
        note = (
            f"Accuracy in percent ({where}), mean over seeds; interval: t over seeds, none for one seed. A "
            "run that diverged counts as 0. One that crashed, which says nothing about the algorithm, one "
            "still to come and one without data are left out and keep their comparisons unresolved. "
            "Validation best is the best evaluation during "
            "training, optimistic for that."
        )
    seeds = runs.drop(columns=["split", "mode"])
    return Table(name, title, header, rows, frame.merge(_wide_seeds(seeds), on=["task", "arm"]), note=note)


def _wide_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """One column per seed with its counted accuracy."""
    table = runs.pivot(index=["task", "arm"], columns="seed", values="counted")
    table.columns = [f"seed_{seed}" for seed in table.columns]
    return table.reset_index()


def _seed_text(run: Mapping[str, Any]) -> str:
    if run["standing"] == FINISHED:
        return percent(run["final"])
    value = NONE if math.isnan(run["counted"]) else percent(run["counted"])
    return f"{value} ({run['standing']})"


def _other_mode(matrix: Matrix, runs: pd.DataFrame) -> list[Table]:
    """The same table for the decoding that the headline does not use."""
    other = "sampled" if (runs["mode"] == "greedy").any() else "greedy"
    if not any(matrix.has(f"eval/{split}/{other}/correct") for split in ("test", "validation")):
        return []
    alternative = summary.finals(matrix, other)
    title = f"Final accuracy, {summary.decoding(matrix, other)}"
    note = "As above; comparisons use the table above only."
    return [_accuracy(matrix, alternative, f"accuracy_{other}", title, note)]


def _comparisons(compared: Sequence[Comparison]) -> Table:
    rows = [
        [
            pair.task,
            f"{pair.first} − {pair.second}",
            points(pair.effect),
            interval(pair.low, pair.high, points),
            p_value(pair.p),
            p_value(pair.p_holm),
            _detectable(pair),
            number(pair.improvement, 2),
            pair.text,
            pair.needs,
        ]
        for pair in compared
    ]
    header = [
        "task",
        "pair",
        "difference",
        "95% interval",
        "p",
        "Holm p",
        "MDE",
        "P(1st wins)",
        "verdict",
        "why",
    ]
    note = (
        "Differences in points of final accuracy, taken inside each seed. p: exact two-sided sign-flip "
        "permutation test over n seeds, whose smallest value is 2/2ⁿ (.25 for three seeds); Holm over the "
        f"pairs of a task. Interval: t over seeds; {INTERVALS} MDE: smallest effect that these seeds find "
        f"in {POWER:.0%} of repetitions, for this very test at the smallest level that Holm asks "
        f"of a pair, {ALPHA:.0%} over the pairs of the task{_levels(compared)}, simulated for normal "
        "differences with the SD observed; in brackets, at the ends of that SD's 95% interval, which few "
        "seeds leave wide. None: so few seeds find no effect, however large. P(1st wins): share of "
        "pairs of runs in which the first arm's is better, ties ½."
    )
    frame = pd.DataFrame([asdict(pair) | {"text": pair.text} for pair in compared])
    return Table("comparisons", "Head to head", header, rows, frame, wide=2, note=note)


def _detectable(pair: Comparison) -> str:
    """The smallest effect that can be found, in points, and how well it is known."""
    if len(pair.seeds) < seeds_needed(ALPHA, pair.pairs):
        return "none"
    if math.isnan(pair.detectable):
        return NONE
    low, high = (number(100 * value, 1) for value in (pair.detectable_low, pair.detectable_high))
    return f"{number(100 * pair.detectable, 1)} ({low} to {high})"


def _levels(compared: Sequence[Comparison]) -> str:
    """The levels of a single pair: (.0083 for 6 pairs)."""
    counts = sorted({pair.pairs for pair in compared})
    told = [f"{ALPHA / n:.2g} for {n} pair{'s' * (n > 1)}" for n in counts]
    return f" ({', '.join(told)})" if told else ""


def _aggregate(matrix: Matrix, runs: pd.DataFrame) -> list[Table]:
    if len(matrix.tasks) < 2 or len(matrix.arms) < 2:
        return []
    result = summary.aggregate(matrix, runs)
    most = max(Counter(zip(runs["arm"], runs["task"], strict=True)).values())
    note = (
        "Interquartile mean over all runs × tasks with a stratified bootstrap interval: seeds are "
        "resampled inside a task, bootstrap seed 0."
    )
    note += (lacking := _lacking(matrix, runs))
    if most < 5:
        note += f" With {most} seeds a task has only {most**most} different resamples: a rough interval."
    first = Table(
        "aggregate",
        "All tasks together",
        ["arm", "interquartile mean (%)", "95% interval"],
        [[arm, percent(e.value), interval(e.low, e.high)] for arm, e in result.interquartile.items()],
        pd.DataFrame([{"arm": arm} | asdict(e) for arm, e in result.interquartile.items()]),
        text_columns=1,
        note=note,
    )
    rows = [
        [f"{a} over {b}", number(e.value, 2), interval(e.low, e.high, two)] for a, b, e in result.improvement
    ]
    frame = pd.DataFrame([{"first": a, "second": b} | asdict(e) for a, b, e in result.improvement])
    header = ["pair", "probability of improvement", "95% interval"]
    meaning = (
        "Probability that a run of the first arm is better than a run of the second, mean over tasks, "
        "ties ½; bootstrap interval. It says how often, not how much, and is no verdict."
    )
    meaning += lacking
    title = "Probability of improvement"
    return [first, Table("improvement", title, header, rows, frame, text_columns=1, note=meaning)]


def _lacking(matrix: Matrix, runs: pd.DataFrame) -> str:
    """What is left out of means over all tasks, in sentences; empty where nothing is."""
    counted = runs.dropna(subset=["counted"])
    there = set(zip(counted["task"], counted["arm"], strict=True))
    tasks = [task for task in matrix.tasks if any((task, arm) not in there for arm in matrix.arms)]
    late, told = len(runs) - len(counted), ""
    if late:
        told += f" Left out: {late} run{'s' * (late > 1)} without a result."
    if tasks:
        told += f" Left out whole, for want of a result of some arm: {', '.join(tasks)}."
    return told


SAMPLES = {
    "pass": ("pass_at_k", "pass@k"),
    "maj": ("majority", "Majority vote"),
}
"""Name and title of the tables about many samples."""
SAMPLES_NOTES = {
    "pass": (
        "Share of problems in percent that at least one of k samples solves, by the unbiased estimator "
        "1 − C(n−c, k)/C(n, k) for c correct of n samples, with n ≥ 2k; k = 1 is the accuracy of a sample."
    ),
    "maj": (
        "Accuracy in percent of the most frequent of k sampled answers, as the verifier reads them: one that "
        "it cannot read has no vote, and of equally many votes those of the answer given first win. Mean "
        "over votes on disjoint samples."
    ),
}


def _samples(curves: pd.DataFrame, kind: str) -> Table:
    """pass@k or votes of k: a row for each k."""
    rows = []
    chosen = _by_place(curves[curves["kind"] == kind])
    for (place, arm, k), own in chosen.groupby(["place", "arm", "k"], sort=False):
        before = own.loc[own["policy"] == "base", "value"].mean()
        seeds = own.loc[own["policy"] != "base"].sort_values("seed")["value"]
        after = seeds.mean()
        cells = [str(place).replace("\n", ", "), arm, str(k), percent(before), percent(after)]
        rows.append([*cells, points(after - before), "  ".join(map(percent, seeds))])
    header = ["task", "arm or model", "k", "before", "after", "gain", "each seed"]
    return Table(*SAMPLES[kind], header, rows, chosen, note=SAMPLES_NOTES[kind])


def _by_place(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one place together, places in the order of their first row."""
    order = {place: number for number, place in enumerate(dict.fromkeys(frame["place"]))}
    return frame.sort_values("place", key=lambda places: places.map(order), kind="stable")


def _later(records: Sequence[evaluations.Record]) -> Table:
    """Accuracies of evaluations made by `grpobench eval`."""
    frame = evaluations.summary(records)
    rows = []
    if len(frame):
        frame = _by_place(frame)
        keys = ["place", "split", "mode", "through", "question", "score", "arm"]
        for (place, split, mode, through, _, score, arm), own in frame.groupby(keys, sort=False):
            last = own[own["policy"] != "base"].sort_values("seed")
            before = own.loc[own["policy"] == "base", "value"].mean()
            mean = last["value"].mean()
            cells = [
                place,
                arm,
                f"{split}, {mode}, {through}",
                score,
                f"{own['items'].iloc[0]} × {own['samples'].iloc[0]:g}",
                percent(before),
                percent(mean),
                points(mean - before),
                "  ".join(f"{percent(r.value)} ({interval(r.low, r.high)})" for r in last.itertuples()),
                ", ".join(dict.fromkeys(own["interval"])),
            ]
            rows.append(cells)
    header = ["task", "arm or model", "how", "score", "items × samples", "before", "after", "gain"]
    header += ["each seed (95% interval over items)", "interval"]
    note = (
        "In percent, from `grpobench eval`: of a run before and after training, of a model as it is. The "
        "interval is about one policy and these items, not about the algorithm: clustered where items share "
        "a template, Wilson below 300 items, else normal. Further numbers stand in the runs' evals folders."
    )
    return Table("evaluations", "Later evaluations", header, rows, frame, text_columns=4, note=note)


def _agreement(records: Sequence[evaluations.Record]) -> Table:
    """Where a question was asked in both ways."""
    frame = evaluations.agreements(records)
    rows = [
        [
            r["place"],
            f"{r['arm']}, seed {r['seed']}, {r['policy']}" if r["policy"] != "model" else r["arm"],
            f"{r['split']}, {r['mode']}",
            str(r["items"]),
            percent(r["grpobench"]),
            percent(r["lm_eval"]),
            str(r["differing"]),
            NONE if pd.isna(r["same_text"]) else f"{r['same_text']:g}",
        ]
        for r in frame.to_dict("records")
    ]
    header = [
        "task",
        "policy",
        "how",
        "items",
        "grpobench (%)",
        "lm-eval (%)",
        "differing",
        "same text",
    ]
    note = (
        "The same items through our sampler and through the lm-eval harness on the same weights, with our "
        "verifier as its metric. Differing items have another score; same text counts completions that are "
        "equal to the letter."
    )
    return Table("agreement", "Two ways of asking", header, rows, frame, text_columns=3, note=note)


def _budgets(matrix: Matrix) -> Table:
    frame = summary.budgets(matrix)
    rows = [
        [
            r["task"],
            r["arm"],
            number(r["updates"], 0),
            count(r["generated_tokens"]),
            count(r["trained_tokens"]),
            number(r["train_seconds"], 0),
            number(r["evaluate_seconds"], 0),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "updates", "generated tokens", "trained tokens", "training s", "evaluation s"]
    return Table(
        "budgets", "What each run spent", header, rows, frame, note="Mean over seeds, failed runs included."
    )


def _equal_budgets(matrix: Matrix) -> Table:
    frame = summary.equal_budgets(matrix)
    rows = []
    for (task, axis, budget), own in frame.groupby(["task", "axis", "budget"], sort=False):
        accuracy = dict(zip(own["arm"], own["accuracy"], strict=True))
        cells = [percent(accuracy.get(arm, math.nan)) for arm in matrix.arms]
        rows.append([task, f"{count(budget)} {summary.AXES[axis]}", *cells])
    note = (
        "Validation accuracy in percent at the largest budget that every finished run of the task "
        "reached: the last evaluation at or before it, mean over seeds. Equal updates, equal generated "
        "tokens and equal seconds are three different comparisons."
    )
    header = ["task", "at equal budget", *matrix.arms]
    return Table("equal_budgets", "Accuracy at equal budgets", header, rows, frame, note=note)


def _costs(matrix: Matrix) -> Table:
    frame = summary.costs(matrix)
    rows = [
        [r["task"], r["arm"], number(r["seconds"], 2)]
        + [number(r[phase], 2) for phase in summary.PHASES]
        + [
            count(r["tokens_per_second"]),
            count(r["sampling_tokens_per_second"]),
            number(r["peak_memory_gb"], 2),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "s/update", *summary.PHASES, "tokens/s", "tokens/s sampling", "peak GB"]
    note = "Means over all updates of all seeds, evaluation left out; peak memory is the highest of any seed."
    return Table("costs", "Costs", header, rows, frame, note=note)


def _gaps(matrix: Matrix) -> Table:
    """How well samplers with weights of their own agreed with the trainer."""
    frame = summary.gaps(matrix)
    rows = [
        [
            *(r["task"], r["arm"]),
            *(small(r[name]) for name in ("mean", "largest", "after_sync")),
            *(number(r["effective"], 4), number(r["weight"], 4), percent(r["clipped"])),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "mean gap", "largest gap", "largest after sync"]
    header += ["effective sample", "correction weight", "corrected, % of tokens"]
    note = (
        "Nats between the sampler's log-probabilities and the trainer's on the same weights, over all "
        "updates of all seeds; after sync: on the probe that proves that the engine took over the weights. "
        "Effective sample: the smallest share left by the ratios of probabilities, 1 without a gap."
    )
    return Table("gaps", "Sampler and trainer", header, rows, frame, note=note)


def _rewards(matrix: Matrix) -> Table:
    """What each arm was paid for, and what became of it and of the verdict."""
    frame = summary.reward_parts(matrix)
    names = list(dict.fromkeys(frame["metric"]))
    means = frame.groupby(["task", "arm", "metric"])[["start", "end"]].mean()
    rows = []
    for task, arm in dict.fromkeys(zip(frame["task"], frame["arm"], strict=True)):
        cells = []
        for name in names:
            both = means.loc[(task, arm, name)] if (task, arm, name) in means.index else None
            cells.append(NONE if both is None else f"{two(both['start'])} → {two(both['end'])}")
        own = frame[(frame["task"] == task) & (frame["arm"] == arm)]
        change = (own["end"] - own["start"]).groupby([own["seed"], own["metric"]]).mean().unstack()
        parted = (change.get("reward/mean", 0) > 0) & (change.get(summary.VERDICT, 0) < 0)
        rows.append([task, arm, *cells, f"{int(parted.sum())} of {len(change)}"])
    labels = {"reward/mean": "reward", summary.VERDICT: "verdict"}
    heads = [labels.get(name, name.removeprefix("reward/").replace("_", " ")) for name in names]
    note = (
        "Mean over seeds at the first update, whose rollouts are the base policy's, → over the last tenth of "
        "the updates. Reward: what was paid; verdict: share that the verifier accepts, measured whatever is "
        "paid. Parted: seeds in which the reward rose and the verdict fell; a rise by chance "
        "counts too, so read it with the curves and the accuracy on held-out problems."
    )
    header = ["task", "arm", *heads, "parted"]
    return Table("rewards", "What was rewarded", header, rows, frame, note=note)


def _critic(matrix: Matrix) -> Table:
    """What each critic explained at the end of training."""
    frame = critic.explained(matrix)
    rows = []
    for (task, arm), own in frame.groupby(["task", "arm"], sort=False):
        shares = own["explained"]
        little = int((~(shares >= critic.LITTLE)).sum())
        rows.append(
            [
                task,
                arm,
                percent(shares.mean()),
                interval(shares.min(), shares.max()),
                "  ".join(map(percent, shares)),
                percent(own["group"].mean()),
                f"{little} of {len(own)}",
            ]
        )
    level = f"{critic.LITTLE:.0%}"
    header = ["task", "arm", "explained", "over seeds", "each seed", "the group explains", f"below {level}"]
    note = (
        "Variance of the returns in percent that the critic's values explained before each update, mean "
        f"over the last quarter of the updates: 0 is what predicting the mean return explains, and below "
        f"{level} the critic is in effect none. Beside it what the mean reward of the group's other rollouts "
        "explains of the same returns. Returns that are made from the critic's own values "
        "(a trace below 1) resemble them, which flatters it."
    )
    return Table("critic", "What the critic explained", header, rows, frame, note=note)


def _bias(matrix: Matrix) -> Table:
    frame = summary.bias(matrix)
    rows = []
    if len(frame):
        means = frame.groupby(["task", "arm", "category", "metric", "when"])["value"].mean()
        for task in matrix.tasks:
            for arm in matrix.arms:
                cells = [_before_after(means, (task, arm, "all", metric)) for metric in summary.BIAS]
                if any(cell != NONE for cell in cells):
                    rows.append([task, arm, *cells])
    header = ["task", "arm", "accuracy ambiguous", "accuracy disambiguated", "unknown rate", "s_AMB", "s_DIS"]
    header += ["lean ambiguous", "lean disambiguated"]
    note = (
        "Before → after training, mean over seeds, all categories (where the category of the training item "
        "is measured apart, all others); by category in tables/bias.csv. Lean, only by likelihood: "
        "probability of the stereotype's person less that of the other one. "
    )
    return Table("bias", "Bias", header, rows, frame, note=note + _warnings(probes.caveats(matrix)))


def _probes(matrix: Matrix, records: Sequence[evaluations.Record]) -> Table:
    """Later evaluations on tasks that probe for bias."""
    frame = probes.frame(records)
    rows = []
    whole = frame[frame["category"] == "all"]
    keys = ["place", "split", "mode", "through", "arm", "metric"]
    for (place, split, mode, through, arm), own in whole.groupby(keys[:-1], sort=False):
        means = own.groupby(["metric", "policy"])["value"].mean()
        seeds = str(own["seed"].nunique())
        for metric in probes.PUBLISHED:
            told = {p: means[metric, p] for p in ("base", "final", "model") if (metric, p) in means.index}
            if told:
                text = " → ".join(two(value) for value in told.values())
                rows.append([place, f"{split}, {mode}, {through}", arm, metric, seeds, text])
    header = ["task", "how", "arm or model", "metric", "seeds", "before → after training, or the model's"]
    note = "All categories together, mean over seeds; by category in tables/probes.csv. "
    asked = {record.task: None for record in records if record.place in set(frame["place"])}
    told = {task: text for task, text in probes.caveats(matrix, records).items() if task in asked}
    return Table("probes", "Bias probes", header, rows, frame, text_columns=4, note=note + _warnings(told))


def _warnings(caveats: Mapping[str, str]) -> str:
    """The caveats as one text; tasks with the same one share it."""
    tasks: dict[str, list[str]] = {}
    for task, caveat in caveats.items():
        tasks.setdefault(caveat, []).append(task)
    return " ".join(f"Caveat ({', '.join(names)}): {caveat}" for caveat, names in tasks.items())


def _before_after(means: pd.Series, key: tuple[str, ...]) -> str:
    after = means.get((*key, "final"), math.nan)
    before = means.get((*key, "base"), math.nan)
    show = signed if key[-1].startswith(("bias", "lean")) else two
    return NONE if math.isnan(after) else f"{show(before)} → {show(after)}"


def _statuses(matrix: Matrix) -> Table:
    frame = matrix.statuses
    rows = [
        [r["arm"], r["task"], str(r["seed"]), r["state"], str(r["step"]), str(r["attempt"]), r["why"] or NONE]
        for r in frame.to_dict("records")
    ]
    header = ["arm", "task", "seed", "state", "step", "attempt", "why"]
    return Table("runs", "Every run", header, rows, frame, text_columns=4, wide=1)


# The page


@dataclass(frozen=True)
class _Shown:
    name: str
    title: str
    caption: str
    markup: Markup


def _figure(drawing: figures.Drawing, place: Path, formats: Sequence[str]) -> _Shown:
    """Save a figure in the formats asked for, and make what the page embeds."""
    text = figures.svg(drawing) if {"html", "svg"} & set(formats) else ""
    if "svg" in formats:
        (place / f"{drawing.name}.svg").write_text(text, encoding="utf-8")
    if "pdf" in formats:
        figures.pdf(drawing, place / f"{drawing.name}.pdf")
    markup = ""
    if "html" in formats and len(text) > LARGEST_SVG:
        data = base64.b64encode(figures.png(drawing)).decode()
        markup = f'<img src="data:image/png;base64,{data}" alt="{escape_html(drawing.title)}">'
    elif "html" in formats:
        markup = inline(text, drawing.name, drawing.title)
    return _Shown(drawing.name, drawing.title, drawing.caption, Markup(markup))


def inline(svg: str, name: str, title: str) -> str:
    """An SVG file as an element of a page: no prologue, no metadata, and ids that no other figure has."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    points = float(re.search(r'width="([\d.]+)pt"', body)[1])  # type: ignore[index]  # matplotlib always says
    body = re.sub(r'\b(width|height)="[\d.]+pt" ?', "", body, count=2)
    style = f"width:{points * SCREEN:.0f}px"
    return body.replace("<svg", f'<svg role="img" aria-label="{escape_html(title)}" style="{style}"', 1)


LINES = (
    "Thin lines are seeds, thick lines their mean, dotted from where a seed of the arm has no more "
    "values; × marks the end of a run that diverged or crashed."
)
SECTIONS: Sequence[tuple[str, str, Sequence[str], Sequence[str]]] = (
    ("Accuracy", "", ("final_accuracy",), ("accuracy", "accuracy_sampled", "accuracy_greedy")),
    ("Many samples", "", ("sampling",), ("pass_at_k", "majority")),
    ("Head to head", "", ("differences",), ("comparisons", "aggregate", "improvement")),
    (
        "Learning curves",
        LINES,
        ("accuracy_updates", "accuracy_tokens", "accuracy_seconds", "reward"),
        ("equal_budgets", "budgets"),
    ),
    ("Rewards", LINES, ("components",), ("rewards",)),
    (
        "Training dynamics",
        LINES,
        ("entropy", "kl", "clip", "gradient", "length", "zero_signal", "sampled", "explained_variance"),
        ("critic",),
    ),
    ("Bias", "", ("bias", "bias_updates"), ("bias", "probes")),
    ("Later evaluations", "", (), ("evaluations", "agreement")),
    ("Costs", "", ("seconds", "rates"), ("costs",)),
)
"""(title, lead, figures, tables) of the page, in order; what a matrix does not have is left out."""


def _page(facts: Facts, drawn: Sequence[_Shown]) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    by_name = {shown.name: shown for shown in drawn}
    sections = []
    for title, lead, figure_names, table_names in SECTIONS:
        shown = [by_name[name] for name in figure_names if name in by_name]
        tables = [facts.tables[name] for name in table_names if name in facts.tables]
        if shown or tables:
            sections.append({"title": title, "lead": lead, "figures": shown, "tables": tables})
    matrix = facts.matrix
    return environment.get_template("report.html.j2").render(
        matrix=matrix,
        head=_head(facts),
        resolved=[_claim(pair) for pair in facts.compared if pair.verdict != "unresolved"],
        compared=facts.compared,
        outlook=_outlook(facts),
        planned=_planned(facts),
        alarms=facts.alarms,
        failures=_failures(facts),
        dim=list(critic.warnings(critic.explained(matrix))),
        little=critic.LITTLE,
        damaged=[run for run in matrix.runs if run.cut_lines or run.rewritten_rows],
        pairing=facts.pairing,
        sections=sections,
        runs=facts.tables["runs"],
        settings=facts.settings,
        origins=facts.origins,
    )


def _claim(pair: Comparison) -> dict[str, str]:
    """A resolved comparison in words, seen from the better arm."""
    effect, low, high = pair.effect, pair.low, pair.high
    if pair.verdict == "second":
        effect, low, high = -effect, -high, -low
    size = f"{points(effect)} points ({interval(low, high, points)})"
    return {"text": pair.text, "rest": f"on {pair.task}: {size}; {pair.needs}"}


def _head(facts: Facts) -> dict[str, str]:
    """What was run, in a few words each."""
    matrix = facts.matrix
    return {
        "arms": ", ".join(matrix.arms),
        "tasks": ", ".join(matrix.tasks),
        "seeds": ", ".join(map(str, matrix.seeds)),
        "runs": _planned(facts),
        "model": _common(facts.settings, "model.name"),
        "updates": _common(facts.settings, "train.steps"),
        "sampler": _common(facts.settings, "sampler.kind"),
        "evaluation": " and ".join(
            summary.decoding(matrix, mode)
            for mode in ("greedy", "sampled", "likelihood")
            if any(name.split("/")[2] == mode for name in matrix.names("eval/"))
        ),
    }


def _planned(facts: Facts) -> str:
    """How every planned run stands, in numbers that add up, and how many were not planned."""
    told = ", ".join(f"{n} {standing}" for standing, n in facts.accounting.items())
    extra = sum(not run.planned for run in facts.matrix.runs)
    planned = f"{sum(facts.accounting.values())} planned: {told}"
    return f"{planned}; and {extra} that were not planned" if extra else planned


def _failures(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Every run that has no final accuracy of its own, and why."""
    standing = {(r.arm, r.task, r.seed): r.standing for r in facts.runs.itertuples()}
    return [
        (f"{run.arm} on {run.task}, seed {run.seed}", how, f"at update {run.step}", run.why)
        for run in facts.matrix.runs
        if (how := standing[run.arm, run.task, run.seed]) != FINISHED
    ]


def _common(settings: Sequence[summary.Setting], key: str) -> str:
    """The value of a setting over all arms, or each arm's own."""
    for setting in settings:
        if setting.key == key:
            if not setting.differs:
                return next(iter(setting.values.values()))
            return "; ".join(f"{arm}: {value}" for arm, value in setting.values.items())
    return NONE


def _outlook(facts: Facts) -> str:
    """What this many seeds can decide at all."""
    matrix, late = facts.matrix, int(facts.runs["counted"].isna().sum())
    pairs = len(matrix.arms) * (len(matrix.arms) - 1) // 2
    if not pairs:
        return "There is one arm: nothing to compare."
    needed, seeds = seeds_needed(ALPHA, pairs), len(matrix.seeds)
    can = (
        "so verdicts are possible" + (", but not where a run has no result" if late else "")
        if seeds >= needed
        else f"so no verdict is possible with {seeds}, whatever the accuracies are"
    )
    return (
        f"With {seeds} seed{'s' * (seeds > 1)} the smallest two-sided p of the exact test is "
        f"{smallest_p(seeds):.3g}; comparing {pairs} pair{'s' * (pairs > 1)} of arms per task at {ALPHA:g} "
        f"needs at least {needed} seeds, {can}. A 95% interval of a difference is a t interval over seeds: "
        f"{INTERVALS}"
    )


def as_json(facts: Facts) -> dict[str, Any]:
    """Everything machine-readable; accuracies are shares."""
    matrix = facts.matrix
    return {
        "matrix": {
            "name": matrix.name,
            "summary": matrix.summary,
            "arms": list(matrix.arms),
            "tasks": list(matrix.tasks),
            "seeds": list(matrix.seeds),
            "recipe": matrix.recipe,
        },
        "alpha": ALPHA,
        "seeds_needed": seeds_needed(ALPHA, max(1, len(matrix.arms) * (len(matrix.arms) - 1) // 2)),
        "runs": facts.runs.merge(matrix.statuses.drop(columns="state"), on=["arm", "task", "seed"]).to_dict(
            "records"
        ),
        "comparisons": [asdict(pair) | {"text": pair.text} for pair in facts.compared],
        "pairing": asdict(facts.pairing),
        "accounting": dict(facts.accounting),
        "alarms": {alarm.title: list(alarm.lines) for alarm in facts.alarms},
        "tables": {
            name: table.frame.to_dict("records")
            for name, table in facts.tables.items()
            if name not in ("comparisons", "runs")
        },
        "settings": {
            setting.key: {**setting.values, "differs": setting.differs, "changed": sorted(setting.changed)}
            for setting in facts.settings
        },
        "origin": {
            key: [{"value": v, "runs": n} for v, n in values] for key, values in facts.origins.items()
        },
        "configs": {name: dict(config) for name, config in matrix.configs.items()},
    }


def plain(value: Any) -> Any:
    """JSON-ready: numpy scalars unwrapped, NaN and infinities as null, other objects as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


# Text


TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "−": "$-$",
    "–": "--",
    "→": r"$\to$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "½": r"$\tfrac12$",
}


def tex(table: Table) -> str:
    """A booktabs tabular of the printed cells; a column of sentences is left to the page."""
    last = len(table.header) - 1 if table.name == "comparisons" else len(table.header)
    left = set(range(table.text_columns)) | set(range(len(table.header) - table.wide, len(table.header)))
    align = "".join("l" if i in left else "r" for i in range(last))
    lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    lines.append(" & ".join(map(escape, table.header[:last])) + r" \\")
    lines.append(r"\midrule")
    before = None
    for row in table.rows:
        if before is not None and row[0] != before and table.text_columns > 1:
            lines.append(r"\addlinespace")
        before = row[0]
        lines.append(" & ".join(map(escape, row[:last])) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escape(text: str) -> str:
    """Text with every character that TeX reads as a command made printable."""
    return "".join(TEX.get(character, character) for character in visible(str(text)))
