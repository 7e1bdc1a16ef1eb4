"""`grpobench eval`."""

from __future__ import annotations

import argparse
import sys

from grpobench.runs.commands.options import assignments
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say
from grpobench.runs.evaluation.question import Through, Wish
from grpobench.runs.evaluation.records import assess
from grpobench.runs.evaluation.shown import lines, paired


def eval_command(options: argparse.Namespace) -> int:
    """Evaluate one model, one run folder, or every run of a matrix folder."""
    both: tuple[Through, ...] = ("grpobench", "lm-eval")
    wish = Wish(
        task=options.task,
        sets=assignments(options.sets),
        split=options.split,
        problems=options.problems,
        samples=options.samples,
        greedy=not options.no_greedy,
        temperature=options.temperature,
        limit=options.max_new_tokens,
        seed=options.seed,
        drop_long=options.drop_long,
        through=both if options.through == "both" else (options.through,),
        base=not options.no_base,
        again=options.again,
        out=options.out,
        tasks_folder=options.keep_tasks,
        include=options.include,
        fewshot=options.fewshot,
        template=not options.no_chat_template,
    )
    records = []
    try:
        for record in assess(options.target, wish, lambda line: say(line, file=sys.stderr)):
            records.append(record)
            if not options.json:
                say("\n".join(lines(record)))
    except RuntimeError as error:  # the grader gives up
        return complain(str(error), INFRASTRUCTURE)
    compared = paired(records)
    if options.json:
        say(as_json({"records": [record.summary for record in records], "agreement": compared.rows}))
    elif compared.lines:
        say("\n".join(compared.lines))
    return DONE
