"""Evaluation through EleutherAI's lm-eval harness: our tasks as tasks of the harness, and its tasks by
name."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.metrics.evaluator import Answer, Mode, Row, continuations
from grpobench.runs.models import trust
from grpobench.runs.models.loading import Loaded
from grpobench.runs.tools import strict
from grpobench.tasks.data import bounded
from grpobench.tasks.data.messages import as_messages
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Split, Task, Verdict

BATCH = 32
"""Sequences that the harness decodes at once."""
EXAMPLES_SEED = 1234
"""The harness's own default seed for few-shot examples."""
SAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def missing() -> str:
    """Why the harness cannot be used, with the remedy; empty if it can."""
    if importlib.util.find_spec("lm_eval") is None:
        return "--through lm-eval needs the lm-eval harness: pip install '.[lm-eval]' in a checkout"
    return ""


def version() -> str:
    """Version of the harness; empty if it is not installed."""
    try:
        return importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class PromptFormat:
    """How our tasks are asked."""

    limit: int
    samples: int
    greedy: bool
    temperature: float
    seed: int
    autocast: str = "float32"

    def modes(self, task: Task) -> list[Mode]:
        """The requested modes that the task has."""
        requested_by_mode: dict[Mode, bool] = {
            "sampled": self.samples > 0,
            "greedy": self.greedy,
            "likelihood": True,
        }
        return [mode for mode, wants in requested_by_mode.items() if wants and mode in task.modes]


def ask(
    loaded: Loaded,
    task: Task,
    split: Split,
    problems: Sequence[Problem],
    decoding: PromptFormat,
    folder: Path,
) -> tuple[dict[Mode, list[list[Answer]]], dict[str, float]]:
    """Our task through the harness: the graded answers of each mode, in the order of the problems, and the
    harness's means as ``eval/<split>/<mode>/<score>``. Writes the task's files to `folder`.

    The harness renders the prompt, tokenizes, batches and decodes with its own Hugging Face code on the same
    weights, and our verifier is its metric. So the two ways share the problems, the weights and the verifier
    and nothing in between, and their results must agree."""
    if task.turns > 1:
        raise DataError(
            f"task {task.name} has {task.turns} turns, and lm-eval asks for one answer; evaluate it with "
            "--through grpobench"
        )
    answers_by_mode: dict[Mode, list[list[Answer]]] = {}
    numbers: dict[str, float] = {}
    for mode in decoding.modes(task):
        name = write(folder, loaded, task, split, problems, mode, decoding)
        plain = mode == "likelihood" and any(task.premise(problem) is not None for problem in problems)
        templated = not plain and loaded.has_chat_template
        if not plain:
            demand_same_prompts(loaded, problems, templated)
        model = language_model(loaded, templated, decoding.autocast)
        applied = templated and not has_messages(problems)
        harness_results = run_harness(name, model, folder, templated=applied, seed=decoding.seed)
        answers_by_mode[mode] = [_answers(mode, sample) for sample in harness_results["samples"][name]]
        for key, value in harness_results["results"][name].items():
            score = key.removesuffix(f",{_filter(mode)}")
            if score in task.scores:
                numbers[f"eval/{split}/{mode}/{score}"] = float(value)
    return answers_by_mode, numbers


def ask_theirs(
    loaded: Loaded,
    name: str,
    problems: int,
    fewshot: int | None,
    template: bool,
    seed: int,
    autocast: str,
    include: Path | None,
) -> tuple[list[Row], dict[str, float]]:
    """A task or group of the harness's own: one row per item, scores as the harness names them, and its
    numbers. `include` is a folder with further tasks in the harness's format."""
    templated = template and loaded.has_chat_template
    harness_results = run_harness(
        name,
        language_model(loaded, templated, autocast, plain=False),
        include,
        templated=templated,
        seed=seed,
        problems=problems,
        fewshot=fewshot,
    )
    rows: list[Row] = []
    for part, samples in harness_results["samples"].items():
        mode = _mode(harness_results["configs"][part])
        row_by_document: dict[str, Row] = {}
        for sample in samples:  # one entry per item and filter
            row = row_by_document.setdefault(
                str(sample["doc_id"]), _their_row(part, part != name, mode, sample)
            )
            for metric in sample["metrics"]:
                value = sample[metric]
                if isinstance(value, (bool, int, float)):
                    row["scores"][_metric(metric, sample["filter"])] = float(value)
        rows += row_by_document.values()
    modes = {_mode(harness_results["configs"][part]) for part in harness_results["samples"]}
    mode = modes.pop() if len(modes) == 1 else "greedy"
    numbers = {}
    for key, value in harness_results["results"][name].items():
        metric, _, kind = key.partition(",")
        if isinstance(value, (int, float)) and kind and "_stderr" not in metric:
            numbers[f"eval/test/{mode}/{_metric(metric, kind)}"] = float(value)
    return rows, numbers


def _mode(config: Mapping[str, Any]) -> Mode:
    if config["output_type"] != "generate_until":
        return "likelihood"
    return "sampled" if (config.get("generation_kwargs") or {}).get("do_sample") else "greedy"


def _metric(name: str, kind: str) -> str:
    """The harness's name of a number: its metric, and its filter if it has one."""
    return name if kind == "none" else f"{name},{kind}"


def _their_row(part: str, grouped: bool, mode: Mode, sample: Mapping[str, Any]) -> Row:
    response = sample["resps"][0][0]
    written = isinstance(response, str)
    return {
        "step": 0,
        "split": "test",
        "mode": mode,
        "problem": f"{part}/{sample['doc_id']}" if grouped else str(sample["doc_id"]),
        "sample": 0,
        "scores": {},
        "answer": None,
        "outcome": "graded",
        "length": None,
        "stopped": None,
        "traits": {"category": part} if grouped else {},
        **({"completion": response} if written else {}),
    }


def _filter(mode: Mode) -> str:
    return "all" if mode == "sampled" else "none"


def _answers(mode: Mode, sample: Mapping[str, Any]) -> list[Answer]:
    """The answers to one problem, from the harness's log of it."""
    if mode == "likelihood":
        pairs = [response[0] for response in sample["resps"]]
        more = {"logp": [float(logp) for logp, _ in pairs]}
        return [Answer(verdict, None, None, more) for verdict in grade(sample["doc"], pairs)]
    texts = sample["resps"][0]
    return [
        Answer(verdict, None, None, {"completion": text})
        for text, verdict in zip(texts, grade(sample["doc"], [texts]), strict=True)
    ]


# Our tasks as the harness reads them


def write(
    folder: Path,
    loaded: Loaded,
    task: Task,
    split: Split,
    problems: Sequence[Problem],
    mode: Mode,
    decoding: PromptFormat,
) -> str:
    """Write NAME.jsonl and NAME.yaml for one mode of a task; NAME is its name in the harness. The folder also
    works with the harness's own command line: ``lm_eval --include_path FOLDER --tasks NAME``. Everything but
    the prompt is JSON inside a string, because the harness's reader would turn texts that look like dates
    into dates."""
    folder.mkdir(parents=True, exist_ok=True)
    name = SAFE.sub("_", f"grpobench_{task.name}_{split}_{mode}")
    task_class = (type(task).__module__, type(task).__qualname__)
    where = {"class": task_class, "settings": strict.plain(task), "split": split}
    rows = []
    rendered = loaded.has_chat_template and has_messages(problems)
    for problem in problems:
        row: dict[str, str] = {
            "prompt": loaded.render(problem.prompt) if rendered else problem.text,
            "target": json.dumps(problem.truth, default=str),
            "problem": json.dumps({**where, "id": problem.id}),
        }
        if mode == "likelihood":
            premise, candidates = task.premise(problem), continuations(loaded, task, problem)
            lengths = [len(loaded.tokenizer.encode(text, add_special_tokens=False)) for text in candidates]
            row["prompt"] = row["prompt"] if premise is None else premise
            row |= {"candidates": json.dumps(candidates), "tokens": json.dumps(lengths)}
        rows.append(json.dumps(row))
    (folder / f"{name}.jsonl").write_text("\n".join([*rows, ""]), encoding="utf-8")
    described = definition(name, folder.resolve(), task, mode, decoding)
    (folder / f"{name}.yaml").write_text(described, encoding="utf-8")
    return name


def has_messages(problems: Sequence[Problem]) -> bool:
    """Whether a prompt is messages. The harness's tasks hold texts, to which it would apply the chat template
    as to one message of the user. So all prompts are then rendered here, and the harness applies none."""
    return not all(isinstance(problem.prompt, str) for problem in problems)


def definition(name: str, folder: Path, task: Task, mode: Mode, decoding: PromptFormat) -> str:
    """A task of the harness as YAML, which includes JSON. Answers end where the model ends them; the
    harness's default would also stop at the first empty line."""
    sources = {"data_files": {"test": str(folder / f"{name}.jsonl")}, "cache_dir": str(folder / ".cache")}
    table: dict[str, Any] = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": sources,
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": "target",
        "metric_list": [
            {"metric": score, "aggregation": "mean", "higher_is_better": True} for score in task.scores
        ],
        "metadata": {"version": 1},
    }
    functions = {"process_results": "process_results"}
    if mode == "likelihood":
        table |= {"output_type": "multiple_choice", "target_delimiter": ""}
        functions["doc_to_choice"] = "candidates"
    else:
        generation: dict[str, Any] = {"until": [], "do_sample": False, "max_gen_toks": decoding.limit}
        if mode == "sampled":
            drawn = {"do_sample": True, "temperature": decoding.temperature, "top_k": 0, "top_p": 1.0}
            every = {"function": "take_first_k", "k": decoding.samples}
            table["repeats"] = decoding.samples
            table["filter_list"] = [{"name": _filter(mode), "filter": [every]}]
            generation |= drawn
        table |= {"output_type": "generate_until", "generation_kwargs": generation}
    lines = [f"{key}: {json.dumps(value)}" for key, value in table.items()]
    lines += [f"{key}: !function {__name__}.{function}" for key, function in functions.items()]
    return "\n".join([f"# {task.source}", *lines, ""])


def candidates(doc: Mapping[str, str]) -> list[str]:
    """The continuations whose likelihoods the harness computes."""
    return list(bounded.parse_json(doc["candidates"]))


def process_results(doc: Mapping[str, str], results: Sequence[Any]) -> dict[str, float]:
    """Mean scores of a problem over its answers, which the harness then averages over problems. Answers that
    the machine failed to grade are left out."""
    verdicts = [verdict for verdict in grade(doc, results) if verdict.outcome != "infra_error"]
    names = sorted({name for verdict in verdicts for name in verdict.scores})
    return {
        name: sum(verdict.scores.get(name, 0.0) for verdict in verdicts) / len(verdicts) for name in names
    }


def grade(doc: Mapping[str, str], results: Sequence[Any]) -> list[Verdict]:
    """Grade the harness's output for a problem: [text], [[texts]], or a (log-probability, whether greedy)
    pair per candidate."""
    if "candidates" in doc:
        return [_chosen(doc["problem"], tuple(float(logp) for logp, _ in results), doc["tokens"])]
    texts = [results[0]] if isinstance(results[0], str) else results[0]
    return list(_verified(doc["problem"], tuple(texts)))


@functools.cache
def _verified(where: str, texts: tuple[str, ...]) -> tuple[Verdict, ...]:
    """Cached, because the harness's metric and our rows both need it."""
    task, problem = _problem_of(where)
    return tuple(task.verify(problem, texts))


@functools.cache
def _chosen(where: str, logp: tuple[float, ...], tokens: str) -> Verdict:
    task, problem = _problem_of(where)
    return task.choose(problem, logp, bounded.parse_json(tokens))


def _problem_of(where: str) -> tuple[Task, Problem]:
    problem_key = bounded.parse_json(where)
    settings = json.dumps(problem_key["settings"], sort_keys=True)
    task, problems = _problems(*problem_key["class"], settings, problem_key["split"])
    return task, problems[problem_key["id"]]


@functools.lru_cache(maxsize=16)
def _problems(module: str, name: str, settings: str, split: Split) -> tuple[Task, dict[str, Problem]]:
    faults: list[str] = []
    cls: type[Task] = getattr(importlib.import_module(module), name)
    task = strict.build(cls, bounded.parse_json(settings), "task", faults)
    if isinstance(task, strict.Bad):
        raise strict.ConfigError(faults)
    return task, {problem.id: problem for problem in task.problems(split)}


# The harness


def language_model(loaded: Loaded, templated: bool, autocast: str = "float32", plain: bool = True) -> Any:
    """The harness's model class around the same weights. A rendered chat template already holds its special
    tokens. With `plain` the model's generation defaults (repetition penalty, top-k) are left out, as in our
    sampler."""
    import copy

    import transformers
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    model = loaded.model
    ends = list(loaded.end)
    if plain:
        model.generation_config = transformers.GenerationConfig(eos_token_id=ends, pad_token_id=loaded.pad)
    else:
        model.generation_config.eos_token_id = ends
    return HFLM(
        pretrained=model,
        tokenizer=copy.deepcopy(loaded.tokenizer),
        batch_size=BATCH,
        max_length=loaded.context,
        add_bos_token=False if templated else None,
        mixed_precision_dtype=None if autocast == "float32" else autocast,
        trust_remote_code=trust.trusted(),
    )


def demand_same_prompts(loaded: Loaded, problems: Sequence[Problem], templated: bool) -> None:
    """Raise DataError if the harness would read other tokens than our sampler."""
    model = language_model(loaded, templated)
    rendered = templated and has_messages(problems)
    for problem in problems:
        text = loaded.render(problem.prompt) if rendered else problem.text
        if templated and not rendered:
            text = model.apply_chat_template(as_messages(text))
        ours, theirs = list(loaded.encode(problem.prompt)), model.tok_batch_encode([text])[0][0].tolist()
        if ours != theirs:
            raise DataError(
                f"problem {problem.id}: lm-eval reads its prompt as {len(theirs)} tokens and our sampler as "
                f"{len(ours)} different ones; the model's tokenizer treats special tokens in a way that the "
                "two do not share: evaluate with --through grpobench"
            )


def run_harness(
    name: str,
    model: Any,
    folder: Path | None,
    *,
    templated: bool,
    seed: int,
    problems: int = 0,
    fewshot: int | None = None,
) -> dict[str, Any]:
    """Load a task or group, from the folder or else the harness's own, and evaluate it; returns the harness's
    results with every sample. This follows the harness's `simple_evaluate`, without its survey of the
    machine. Raises DataError for a task that is unknown, cannot be loaded, or runs code."""
    import datasets
    import torch
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    datasets.disable_progress_bars()
    manager = TaskManager(include_path=str(folder) if folder else None, include_defaults=False)
    if name not in manager.all_tasks:  # Indexing all of the harness's own tasks takes seconds.
        manager = TaskManager(include_path=str(folder) if folder else None)
    if name not in manager.all_tasks:
        guess = strict.nearest(name, manager.all_tasks)
        did = f"; did you mean {guess!r}?" if guess else ""
        raise DataError(f"unknown task {name!r} in both grpobench and lm-eval{did}")
    try:
        loaded = manager.load([name])
    except Exception as error:  # The hub, the network and loading scripts raise many types.
        why = str(error).strip().partition("\n")[0][:300]
        raise DataError(
            f"lm-eval could not load {name}: {type(error).__name__}: {why}; its tasks read their data from "
            "the Hugging Face hub: connect this machine, or fill the hub's cache (HF_HOME) on one that is. "
            "Our own tasks need no network"
        ) from error
    for task in loaded["tasks"].values():
        prepare(task, fewshot)
    torch.manual_seed(seed)
    harness_results = evaluate(
        lm=model,
        task_dict=loaded,
        limit=problems or None,
        bootstrap_iters=0,
        log_samples=True,
        apply_chat_template=templated,
        fewshot_as_multiturn=True,
    )
    assert isinstance(harness_results, Mapping)
    return dict(harness_results)


def prepare(task: Any, fewshot: int | None) -> None:
    """Set the number of few-shot examples if the task leaves it open, and their seed. Raises DataError."""
    if getattr(task, "UNSAFE_CODE", False):
        raise DataError(
            f"lm-eval's task {task.task_name} runs what the model writes as code on this machine, "
            "without a sandbox, which grpobench refuses; use a code task of grpobench, which has a sandbox"
        )
    num_fewshot = task.get_config("num_fewshot")
    if num_fewshot is None or (fewshot is not None and num_fewshot != 0):
        task.set_config(key="num_fewshot", value=fewshot or 0)
    task.set_fewshot_seed(seed=EXAMPLES_SEED)
