"""The folder of a hand-over: settings, data, policies, the reward function, commands, and what differs."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpobench.algorithms.libraries.verl_arguments import ACTOR, RELEASE
from grpobench.analysis.runfolder import formats
from grpobench.runs.handover import base, data, grading, trl, verl
from grpobench.runs.handover.plan import Part, Plan, make
from grpobench.runs.importing.handed import HAND_OVER
from grpobench.runs.settings import stored
from grpobench.runs.settings import trl as trl_settings
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError

LIBRARIES = {"verl": verl, "trl": trl}
CONFIGS, LOGS = "configs", "logs"
Tell = Callable[[str], None]
REWARD = '''"""verl's reward function: the graders of grpobench, which must be installed on every node."""

from pathlib import Path

from grpobench.runs.handover.grading import Graders

graders = Graders(Path(__file__).parent)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, part="", **_):
    """`score` is the reward, `acc` whether the answer is right, the others are the task's scores."""
    return graders.score(part, extra_info, solution_str)
'''


def write(recipe: Recipe, library: str, out: Path, leave_out: bool, tell: Tell) -> Plan:
    """Write the hand-over of a recipe into `out`, which appears whole or not at all. Raises ConfigError for
    what the library cannot express, and if `out` exists."""
    plan = make(recipe, library, LIBRARIES[library].translate, leave_out)
    if out.exists():
        raise ConfigError([f"{out} already exists; name a new folder"])
    files.demand_writable(out, "DIR")
    with files.becoming(out) as aside:
        runs, policies = write_parts(plan, aside, tell)
        (aside / "README.md").write_text(readme(plan), encoding="utf-8")
        record = {
            formats.KEY: formats.FORMAT,
            HAND_OVER: {
                "by": f"grpobench {importlib.metadata.version('grpobench')}",
                "library": library,
                "release": release(library),
                "experiment": plan.experiment,
                "recipe": recipe.text,
                "sets": list(recipe.sets),
                "models": policies,
                "runs": runs,
                "differs": {part.name: part.translated.differs for part in plan.parts},
                "refused": list(plan.refused),
            },
        }
        (aside / "provenance.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (aside / "run.sh").write_text(script(plan, runs), encoding="utf-8")
        (aside / "run.sh").chmod(0o755)
        if library == "verl":
            (aside / "reward.py").write_text(REWARD, encoding="utf-8")
        else:
            shutil.copyfile(Path(__file__).with_name("train_with_trl.py"), aside / "train.py")
    return plan


def release(library: str) -> str:
    return RELEASE if library == "verl" else trl_settings.RELEASE


def write_parts(plan: Plan, folder: Path, tell: Tell) -> tuple[dict[str, Any], dict[str, str]]:
    """Write settings, data and policies of every part. The runs by name, and the hash of the weights of each
    policy that is inside."""
    for name in (CONFIGS, grading.RECIPES):
        (folder / name).mkdir()
    locations: dict[str, str] = {}
    policies: dict[str, str] = {}
    parquet = data.ParquetFiles(folder)
    runs: dict[str, Any] = {}
    for part in plan.parts:
        config = part.config
        tell(f"{part.name}: problems")
        start = base.base_of(config, locations)
        limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
        problems = data.Problems(config, start.loaded, limit)
        if start.inside and start.location not in policies:
            tell(f"{part.name}: policy")
            policies[start.location] = base.write(
                config, start, folder, lambda update, updates, loss: tell(f"warm start {update}/{updates}")
            )
        write_settings(plan, part, problems, folder)
        evaluated = parquet.evaluated(problems)
        for seed in part.seeds:
            runs[part.run(seed)] = {
                "part": part.name,
                "arm": config.arm,
                "task": config.task.name,
                "seed": seed,
                "steps": config.train.steps,
                "updates": trl_settings.splitting(config).updates if plan.library == "trl" else 1,
                "model": start.location,
                "train": parquet.train(problems, seed),
                "evaluated": evaluated,
                "metrics": metrics(part) if plan.library == "verl" else {},
            }
    return runs, policies


def write_settings(plan: Plan, part: Part, problems: data.Problems, folder: Path) -> None:
    """A part's settings: ours, for grading, and the library's."""
    config = part.config
    recipe = folder / grading.RECIPES / f"{part.name}.toml"
    recipe.write_text(stored.dump(config), encoding="utf-8")
    if plan.library == "trl":
        path = folder / CONFIGS / f"{part.name}.json"
        path.write_text(trl.document(part.translated.settings), encoding="utf-8")
        return
    settings = dict(part.translated.settings)
    settings["data.max_prompt_length"] = problems.longest
    settings["reward.custom_reward_function.name"] = "compute_score"
    settings["reward.custom_reward_function.reward_kwargs.part"] = part.name
    template = base.plain_template(problems.loaded, problems.train, verl.PLAIN_TEMPLATE)
    if template:
        settings[f"{verl.MODEL}.custom_chat_template"] = template
    (folder / CONFIGS / f"{part.name}.yaml").write_text(verl.document(settings), encoding="utf-8")


def metrics(part: Part) -> dict[str, str]:
    """Our names of the accuracies, rewards and scores that verl reports by data set."""
    config = part.config
    evaluate = config.evaluate
    mode = "greedy" if evaluate.greedy else "sampled"
    mean = f"mean@{1 if evaluate.greedy else max(1, evaluate.samples)}"
    scores = {"acc": "correct", "score": "reward"}
    scores |= {name: name for name in config.task.scores if name not in ("correct", *scores)}
    return {
        f"{'val-core' if theirs == 'acc' else 'val-aux'}/{data.source(config, split)}/{theirs}/{mean}": (
            f"eval/{split}/{mode}/{ours}"
        )
        for split in data.EVALUATED
        for theirs, ours in scores.items()
    }


def overrides(name: str, run: Mapping[str, Any], here: str) -> list[str]:
    """What verl's command line is given for a run: files below `here`, and the seed."""
    seed = run["seed"]

    def below(path: str) -> str:
        return f"'{here}/{path}'"

    model = below(run["model"]) if run["model"].startswith(f"{base.MODELS}/") else f"'{run['model']}'"
    assignments = {
        "data.train_files": below(run["train"]),
        "data.val_files": f"[{','.join(map(below, run['evaluated'].values()))}]",
        "data.seed": seed,
        f"{verl.MODEL}.path": model,
        "critic.model.path": model,
        "reward.custom_reward_function.path": below("reward.py"),
        f"{ACTOR}.data_loader_seed": seed,
        f"{ACTOR}.fsdp_config.seed": seed,
        "critic.data_loader_seed": seed,
        "critic.fsdp.seed": seed,
        f"{verl.ROLLOUT}.seed": seed,
        "trainer.experiment_name": f"'{name}'",
        "trainer.default_local_dir": below(f"checkpoints/{name}"),
    }
    return [f"{key}={value}" for key, value in assignments.items()]


def command(name: str, run: Mapping[str, Any], library: str) -> str:
    """The command of a run in run.sh, where HERE is the hand-over's folder."""
    if library == "trl":
        return f'    accelerate launch $LAUNCH "$HERE/train.py" {shlex.quote(run["part"])} {run["seed"]} "$@"'
    lines = [
        f'    VERL_FILE_LOGGER_PATH="$HERE/{LOGS}/{name}.jsonl" python3 -m verl.trainer.main_ppo',
        '      --config-path "$HERE/configs"',
        f"      --config-name {shlex.quote(run['part'])}",
        *(f'      "{assignment}"' for assignment in overrides(name, run, "$HERE")),
        '      "trainer.nnodes=$NODES" "trainer.n_gpus_per_node=$GPUS" "$@"',
    ]
    return " \\\n".join(lines)


def script(plan: Plan, runs: Mapping[str, Any]) -> str:
    """run.sh: one run by name, or all one after the other."""
    uses = {
        "verl": "# GPUS per node and NODES say which machines; further arguments are verl's (KEY=VALUE).",
        "trl": "# LAUNCH holds options of `accelerate launch`; further arguments are those of train.py.",
    }[plan.library]
    defaults = {
        "verl": 'GPUS="${GPUS:-1}" NODES="${NODES:-1}"',
        "trl": 'LAUNCH="${LAUNCH:---num_processes 1}"',
    }[plan.library]
    cases = "\n".join(
        f"  {name})\n{command(name, run, plan.library)}\n    ;;" for name, run in sorted(runs.items())
    )
    names = " ".join(runs)
    return f"""#!/usr/bin/env bash
# One run: bash run.sh RUN [ARGUMENT...]. Every run, one after the other: bash run.sh all [ARGUMENT...].
{uses}
set -euo pipefail
HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
{defaults}
mkdir -p "$HERE/{LOGS}"

start() {{
  local run="$1"
  shift
  case "$run" in
{cases}
  *)
    echo "no run $run; those of this folder are: {names}" >&2
    exit 2
    ;;
  esac
}}

if [ $# = 0 ]; then
  echo "usage: bash run.sh RUN|all [ARGUMENT...]; runs: {names}" >&2
  exit 2
fi
chosen="$1"
shift
if [ "$chosen" = all ]; then
  for run in {names}; do start "$run" "$@"; done
else
  start "$chosen" "$@"
fi
"""


def readme(plan: Plan) -> str:
    """README.md: how to run it, how to read the results back, what differs, what was refused."""
    logs = LOGS if plan.library == "verl" else "outputs"
    title = {"verl": "verl", "trl": "TRL"}[plan.library]
    shared: list[str] = []
    if plan.parts:
        first, *others = (part.translated.differs for part in plan.parts)
        shared = [difference for difference in first if all(difference in other for other in others)]
    lines = [
        f"# {plan.experiment} for {title} {release(plan.library)}",
        "",
        "Written by `grpobench hand-over`. Put this folder where all nodes see it, install grpobench and",
        f"{title} {release(plan.library)} on each of them, and:",
        "",
        "```bash",
        "bash run.sh all",
        f"grpobench import {logs} ../{plan.experiment}-{plan.library}",
        f"grpobench report ../{plan.experiment}-{plan.library}",
        "```",
        "",
        "`import --beside results/NAME` puts our own runs into the same report.",
        "",
        "## What differs everywhere",
        "",
        *(f"- {difference}" for difference in shared),
    ]
    for part in plan.parts:
        part_differences = [difference for difference in part.translated.differs if difference not in shared]
        if part_differences:
            lines += [
                "",
                f"## What differs in {part.name}",
                "",
                *(f"- {difference}" for difference in part_differences),
            ]
    if plan.refused:
        lines += ["", "## What is not here, and why", "", *(f"- {why}" for why in plan.refused)]
    return "\n".join(lines) + "\n"
