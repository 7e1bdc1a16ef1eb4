"""The methods paragraph: models, tasks, budgets, seeds, rewards, curricula, rates, tests and exclusions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from grpobench.analysis.report.facts import Facts
from grpobench.analysis.report.references import LIBRARIES
from grpobench.analysis.report.text import CITED, bibtex_key, used_papers, versions
from grpobench.analysis.runfolder.experiment import FINISHED, Experiment
from grpobench.analysis.statistics.comparison import MOST_ARMS
from grpobench.analysis.statistics.verdicts import ALPHA, no_difference
from grpobench.analysis.tools.text import NONE, count, escape, listed
from grpobench.analysis.topics.accuracy import WITHOUT_DATA, describe_decoding, headline_of
from grpobench.analysis.topics.budgets import sum_costs
from grpobench.analysis.topics.captions import joined, problems_in_words
from grpobench.analysis.topics.runs import RecipeKey
from grpobench.analysis.topics.search import describe_search, list_rate_doubts, list_search_doubts

MOST = 20
"""Most arms or tasks that are named."""
DOSES = {
    "reward.flip": "0",
    "reward.flip.false_positive": "0",
    "reward.flip.false_negative": "0",
    "reward.flip.by": "completion",
    "reward.scale": "1",
    "reward.offset": "0",
    "reward.outliers": "0",
}
"""Settings that change training rewards on purpose, and their values that change nothing."""


def describe_methods(facts: Facts, papers: Mapping[str, str], cite: bool = False) -> str:
    """A paragraph for the methods section of a paper. It leaves out what the runs did not record. With
    `cite` a paper is ` [arXiv:NUMBER]` in the place of its title."""
    settings = {setting.key: setting for setting in facts.settings}
    labels = facts.numbers.shown.labels

    def label(name: str) -> str:
        return labels.get(name, name)

    return joined(
        [
            _what(facts, settings, label),
            _algorithms(facts.experiment, papers, label, cite),
            _tasks(facts.experiment, label),
            _steps(settings),
            _spent(facts.experiment),
            _rates(settings, label),
            _rewards(settings, label),
            describe_draws(settings, label),
            _accuracy(facts.experiment, label),
            _tests(facts.experiment, label),
            f"{search}." if (search := describe_search(facts.experiment)) else "",
            *(f"{doubt}." for doubt in list_rate_doubts(facts.experiment)),
            *(f"{title}." for title, _ in list_search_doubts(facts.experiment)),
            _exclusions(facts),
            _software(facts.experiment, cite),
        ]
    )


def methods_tex(facts: Facts, papers: Mapping[str, str]) -> str:
    """The paragraph for LaTeX, which cites the entries of `make_bibtex`."""
    text = escape(describe_methods(facts, papers, cite=True))
    return f"\\paragraph{{Methods.}} {MARKED.sub(_cite, text)}\n"


MARKED = re.compile(r" \[arXiv:([0-9.]+)\]")


def _cite(marked: re.Match[str]) -> str:
    return f"~\\cite{{{bibtex_key(marked[1])}}}"


Label = Callable[[str], str]
"""The name of an arm or a task in the text."""


def setting_text(settings: Mapping[str, RecipeKey], key: str, label: Label = str) -> str:
    """The value of a setting that all arms share, or each value with its arms; empty if no run recorded
    it."""
    setting = settings.get(key)
    if setting is None:
        return ""
    if not setting.differs:
        return next(iter(setting.values.values()))
    arms: dict[str, list[str]] = {}
    for arm, value in setting.values.items():
        if value != NONE:
            arms.setdefault(value, []).append(label(arm))
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in arms.items())


def seeds_text(seeds: Sequence[int]) -> str:
    """`0 to 7`, or each seed where one is missing."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed(seeds, MOST)


def _what(facts: Facts, settings: Mapping[str, RecipeKey], label: Label) -> str:
    experiment = facts.experiment
    seeds = (
        f"{len(experiment.seeds)} seed{'s' * (len(experiment.seeds) != 1)} ({seeds_text(experiment.seeds)})"
    )
    arms, tasks = (listed(list(map(label, names)), MOST) for names in (experiment.arms, experiment.tasks))
    text = f"We trained {arms} on {tasks} with {seeds} per arm"
    model, dtype = setting_text(settings, "model.name", label), setting_text(settings, "model.dtype", label)
    text += f", from the policy {model}" if model else ""
    text += f" in {dtype}" if model and dtype else ""
    warm = setting_text(settings, "model.warm_start", label)
    return f"{text}." + (f" Supervised updates before training: {warm}." if warm not in ("", "0") else "")


def _algorithms(experiment: Experiment, papers: Mapping[str, str], label: Label, cite: bool) -> str:
    used = used_papers(experiment, papers)
    if cite:
        sources = [f"{label(name)}{_marks(paper)}" for name, paper in used.items()]
    else:
        sources = [f"{label(name)} ({paper})" for name, paper in used.items()]
    sources += [f"{label(name)} (our own, {file})" for name, file in user_classes(experiment).items()]
    return f"Sources of algorithms: {'; '.join(sources)}." if sources else ""


def user_classes(experiment: Experiment) -> dict[str, str]:
    """Algorithm -> its class, such as `mine:Half`, for algorithms of the user's."""
    tables = [config.get("algorithm") for config in experiment.configs.values()]
    return {
        str(table.get("name")): str(table["class"])
        for table in tables
        if isinstance(table, Mapping) and table.get("class")
    }


def _marks(paper: str) -> str:
    return "".join(f" [arXiv:{citation['number']}]" for citation in CITED.finditer(paper)) or f" ({paper})"


def _tasks(experiment: Experiment, label: Label) -> str:
    """The settings of tasks that have some."""
    parts = []
    for task in experiment.tasks:
        configs = [run.config.get("task", {}) for run in experiment.runs if run.task == task and run.config]
        config = configs[0] if configs else {}
        task_settings = config.get("settings", {}) if isinstance(config, Mapping) else {}
        words = ", ".join(
            f"{key.replace('_', ' ')} {value}"
            for key, value in task_settings.items()
            if value not in ([], "")
        )
        parts += [f"{label(task)} ({words})"] if words else []
    return f"Settings of tasks: {'; '.join(parts)}." if parts else ""


def _steps(settings: Mapping[str, RecipeKey]) -> str:
    steps = setting_text(settings, "train.steps")
    prompts, group = (setting_text(settings, f"train.{key}") for key in ("prompts_per_step", "group_size"))
    if not (prompts and group):
        return f"A run has {steps} steps." if steps else ""
    text = f"A step samples {prompts} prompts with {group} completions each"
    minibatches, epochs = (setting_text(settings, f"train.{key}") for key in ("num_minibatches", "epochs"))
    text += f" and makes {minibatches} optimizer updates per pass" if minibatches else ""
    text += f" in {epochs} pass{'es' * (epochs != '1')}" if minibatches and epochs else ""
    temperature = setting_text(settings, "sampler.temperature")
    text += f", at temperature {temperature}" if temperature else ""
    return f"{text}; a run has {steps} steps." if steps else f"{text}."


def _spent(experiment: Experiment) -> str:
    """The range of what runs spent, over arms and tasks."""
    frame = sum_costs(experiment)
    parts = []
    for column, words in (("generated_tokens", "generated tokens"), ("train_seconds", "seconds of training")):
        values = frame[column].dropna()
        if len(values):
            ends = dict.fromkeys(count(value) for value in (values.min(), values.max()))
            parts.append(f"{' to '.join(ends)} {words}")
    return f"Depending on arm and task, a run spent {' and '.join(parts)}." if parts else ""


def _rates(settings: Mapping[str, RecipeKey], label: Label) -> str:
    """Learning rates by role, the policy's first."""
    roles = [key.rpartition(".")[2] for key in settings if key.startswith(f"{RATE}.")]
    roles.sort(key=lambda role: (role != "policy", role))
    rates = [f"{role.replace('_', ' ')} {setting_text(settings, f'{RATE}.{role}', label)}" for role in roles]
    if not rates:
        return ""
    optimizer, schedule = (setting_text(settings, f"train.{key}", label) for key in ("optimizer", "schedule"))
    text = f"Learning rates: {'; '.join(rates)}"
    text += f", with {optimizer}" if optimizer else ""
    text += f" and a {schedule} schedule" if optimizer and schedule else ""
    return f"{text}."


RATE = "train.learning_rate"


def _rewards(settings: Mapping[str, RecipeKey], label: Label) -> str:
    """What is rewarded, where it is not the task's own score, and changes of the rewards."""
    kind = setting_text(settings, "reward.kind", label)
    weight_words = [
        f"{key.removeprefix('reward.weights.')} {setting_text(settings, key, label)}"
        for key in sorted(settings)
        if key.startswith("reward.weights.")
    ]
    changed = [
        f"{re.sub('[._]', ' ', key.removeprefix('reward.'))} {setting_text(settings, key, label)}"
        for key, neutral in DOSES.items()
        if setting_text(settings, key, label) not in ("", neutral)
    ]
    if not kind:
        return ""
    if kind == "task" and not weight_words:
        text = "Rewards are those of the tasks"
    else:
        text = f"Rewards: {kind}" + (f" with weights {', '.join(weight_words)}" if weight_words else "")
    return f"{text}{f', changed on purpose: {listed(changed)}' if changed else ''}."


CHOICES = {
    "train.curriculum": ("curriculum", ("",)),
    "modify.dynamic_sampling": ("dynamic sampling", ("0",)),
    "modify.schedule": ("schedule of problems", ("", "uniform")),
}
"""Settings that choose the problems of a step: their name in the text, and the values that leave the choice
to the algorithm."""


def describe_draws(settings: Mapping[str, RecipeKey], label: Label = str) -> str:
    """How problems are chosen: which arms have a setting for it, which share a schedule, and which did not
    record it."""
    recorded = [settings[key] for key in CHOICES if key in settings]
    if not recorded:
        return ""
    arms = list(recorded[0].values)

    def value(key: str, arm: str) -> str:
        return settings[key].values.get(arm, NONE) if key in settings else NONE

    parts, chosen = [], set()
    for key, (words, neutral) in CHOICES.items():
        by_value: dict[str, list[str]] = {}
        for arm in arms:
            if value(key, arm) not in (NONE, *neutral):
                by_value.setdefault(value(key, arm), []).append(arm)
        for choice, names in by_value.items():
            parts.append(f"{words} {choice}{'' if len(names) == len(arms) else f' ({_names(names, label)})'}")
            chosen.update(names)
    silent = [arm for arm in arms if all(value(key, arm) == NONE for key in CHOICES)]
    default_arms = [arm for arm in arms if arm not in chosen and arm not in silent]
    prompts = {value("train.prompts_per_step", arm) for arm in default_arms}
    text = [f"Problems of a step: {', '.join(parts)}."] if parts else []
    if len(default_arms) > 1 or len(arms) == 1 == len(default_arms):
        whose = "" if len(default_arms) == len(arms) else f"of {_names(default_arms, label)} "
        size = " and with the same number of prompts" if len(prompts) > 1 else ""
        text.append(
            f"Runs {whose}on the same task, with the same seed{size} share a schedule of problems, except "
            "where an algorithm has its own."
        )
    if silent:
        text.append(f"The logs of {_names(silent, label)} do not say how problems were chosen.")
    return " ".join(text)


def _names(arms: Sequence[str], label: Label) -> str:
    return listed([label(arm) for arm in arms], MOST)


def _accuracy(experiment: Experiment, label: Label) -> str:
    headlines = {task: headline_of(experiment, task) for task in experiment.tasks}
    modes = sorted({describe_decoding(experiment, headline.mode) for headline in headlines.values()})
    splits = sorted({headline.split for headline in headlines.values()})
    problems = problems_in_words(
        experiment, {task: headline.split for task, headline in headlines.items()}, label
    )
    text = f"Accuracy is measured on the {' and '.join(splits)} split by {' and '.join(modes)} after the "
    text += f"last update ({problems})"
    if len(experiment.seeds) > 1:
        text += ", mean over seeds with a t interval of 95%"
    return f"{text}."


def _tests(experiment: Experiment, label: Label) -> str:
    """How arms are compared, and what it takes to exclude a difference of the margin."""
    if len(experiment.arms) < 2 or len(experiment.seeds) < 2 or experiment.apart or experiment.sweep_values:
        return ""
    correction = (
        "Holm's correction over the pairs of a task and interim analyses"
        if experiment.plan
        else "correction over the pairs of a task by closed max-T tests with joint sign flips (Westfall and "
        "Young, 1993)"
    )
    against = experiment.control or (experiment.arms[0] if len(experiment.arms) > MOST_ARMS else "")
    who = f"Each arm is compared with {label(against)}" if against else "Arms are compared"
    text = (
        f"{who} in pairs of equal seeds by an exact two-sided sign-flip permutation test at "
        f"{ALPHA:.0%}, with {correction}. Arms show {no_difference(experiment.margin)} if two "
        "one-sided tests of the same kind, after Holm's correction over the pairs of a task, reject such a "
        "difference and the 95% t interval over seeds lies inside the margin."
    )
    return f"{text} {experiment.plan.words}" if experiment.plan else text


def _exclusions(facts: Facts) -> str:
    """Which runs count as 0, and which are left out."""
    statuses = dict(facts.accounting)
    diverged, collapsed = statuses.pop("diverged", 0), statuses.pop("collapsed", 0)
    left_out = {name: n for name, n in statuses.items() if name != FINISHED}
    parts = (
        [f"{diverged} of {sum(facts.accounting.values())} runs diverged and count as 0"] if diverged else []
    )
    parts += [f"{collapsed} collapsed and count with their last accuracy"] if collapsed else []
    if left_out:
        names = ", ".join(
            f"{n} {'without data' if name == WITHOUT_DATA else name}" for name, n in left_out.items()
        )
        parts.append(f"{sum(left_out.values())} without a result are left out ({names})")
    complete_text = f"All {statuses.get(FINISHED, 0)} runs finished, and none is excluded."
    rule = "A run that diverges counts as 0."
    return f"{rule} {'; '.join(parts)}." if parts else f"{rule} {complete_text}"


def _software(experiment: Experiment, cite: bool) -> str:
    installed = ", ".join(
        f"{name} {' and '.join(numbers)}"
        + (f" [arXiv:{LIBRARIES[name][1]}]" if cite and name in LIBRARIES else "")
        for name, numbers in versions(experiment).items()
    )
    return f"Software: {installed}." if installed else ""
