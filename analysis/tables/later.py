"""Tables of later evaluations, and of questions that were asked in two ways."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from grpobench.analysis.logs.later import LaterEvaluation
from grpobench.analysis.summary.agreement import agreements
from grpobench.analysis.summary.later import later_scores
from grpobench.analysis.tables.sampling import by_place
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, interval, percent, points


def later_table(later: Sequence[LaterEvaluation]) -> Table:
    """Accuracies of evaluations made by `grpobench eval`."""
    frame = later_scores(later)
    rows = []
    if len(frame):
        frame = by_place(frame)
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


def agreement_table(later: Sequence[LaterEvaluation]) -> Table:
    """Where a question was asked in both ways."""
    frame = agreements(later)
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
