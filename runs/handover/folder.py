"""The folder of a hand-over: settings, data, policies, the reward function, commands, and what differs."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpobench.algorithms.libraries.verl_arguments import ACTOR, RELEASE
from grpobench.analysis.runfolder import formats
from grpobench.runs.handover import base, data, grading, trl, verl
from grpobench.runs.handover.importing.handed import HAND_OVER
from grpobench.runs.handover.plan import Part, Plan, make
from grpobench.runs.settings import stored
from grpobench.runs.settings import trl as trl_settings
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError

LIBRARIES = {"verl": verl, "trl": trl}
CONFIGS, LOGS, AGENT_LOOPS = "configs", "logs", "agent_loops.yaml"
Tell = Callable[[str], None]
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)


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
        program = {"verl": ("reward_for_verl.txt", "reward.py"), "trl": ("train_with_trl.py", "train.py")}
        ours, name = program[library]
        shutil.copyfile(Path(__file__).with_name(ours), aside / name)
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
        if plan.library == "trl" and config.task.turns != 1:
            problems.demand_different_prompts()
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
                **({"agent_loops": AGENT_LOOPS} if config.task.turns != 1 and plan.library == "verl" else {}),
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
    if config.task.turns != 1:
        (folder / AGENT_LOOPS).write_text(verl.AGENT_LOOPS, encoding="utf-8")
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
    if path := run.get("agent_loops"):
        assignments[f"{verl.ROLLOUT}.agent.agent_loop_config_path"] = below(path)
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
    commands = {name: command(name, run, plan.library) for name, run in runs.items()}
    template = TEMPLATES.get_template("run.sh.j2")
    return template.render(library=plan.library, logs=LOGS, commands=commands, names=" ".join(runs))


def readme(plan: Plan) -> str:
    """README.md: how to run it, how to read the results back, what differs, what was refused."""
    differs = {part.name: part.translated.differs for part in plan.parts}
    first, *others = differs.values() or [[]]
    shared = [difference for difference in first if all(difference in other for other in others)]
    return TEMPLATES.get_template("README.md.j2").render(
        experiment=plan.experiment,
        library=plan.library,
        title={"verl": "verl", "trl": "TRL"}[plan.library],
        release=release(plan.library),
        logs=LOGS if plan.library == "verl" else "outputs",
        shared=shared,
        by_part={name: [text for text in texts if text not in shared] for name, texts in differs.items()},
        refused=plan.refused,
    )
