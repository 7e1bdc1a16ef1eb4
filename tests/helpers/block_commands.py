"""Commands of the documents: each is parsed by the real parser, and carried out as far as that is cheap.

Runs are looked at with `--dry-run`, and evaluations take two problems. The folders and logs that reports and
their like read are made where the page names them, with made-up numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from grpobench.runs import cli
from grpobench.runs.commands.options import Options, seed_list
from grpobench.runs.settings.findings import findings
from grpobench.runs.settings.recipe import recipes
from grpobench.runs.tools.process import environment
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError
from helpers.blocks import ROOT
from helpers.foreign_logs import trainer_state, trl_row, verl_console, verl_row
from helpers.many_texts import write_many
from helpers.pages import drawing
from helpers.synthetic import Synthetic

FILLED: Mapping[str, str] = {"MODEL": "nano", "RECIPE": "quickstart", "T": "arithmetic", "DIR": "."}
"""What stands for a word in capitals."""
DRY_RUN = ("--dry-run", "--no-trial", "--out", "unused")
"""Nothing is written or called, and what stands for results elsewhere on the page is not looked at."""
DRY = ("run", "compare", "map", "search", "finding run")
SMALL: Mapping[str, Sequence[str]] = {
    "eval": ("--problems", "2", "--samples", "2", "--max-completion-tokens", "4"),
    "warmstart": ("--steps", "2", "--batch", "2", "--problems", "2", "--max-completion-tokens", "4"),
}
"""What makes a command cheap, where its model is here."""
AS_THEY_STAND = (
    *("list", "show", "status", "merge", "report", "figure", "import", "findings", "finding list"),
    *("finding show", "finding judge", "data list"),
)
ONLY_PARSED = (
    *("serve", "data fetch", "calibrate", "bench", "doctor", "docs", "keep", "export", "completion"),
    *("publish", "contribute"),
    *("tasks check", "tasks readable", "hand-over"),
)
"""They need a GPU or the network, take minutes, or write into the checkout."""


def lines(text: str) -> Iterator[list[str]]:
    """The words of each command, without comments; a line that ends with a backslash goes on."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line.removeprefix("$ "), comments=True):
            yield words


ABSENT = r"not found\. Any of these helps|comes in a package: grpobench data fetch|is not installed"
"""How errors say that this machine lacks something."""


def carry_out(words: list[str], needs: Sequence[str] = ()) -> None:
    """One command of a block, in the current folder. Fails for one that nobody here knows. Where the block
    `needs` something that is absent, every other error still fails."""
    first, *arguments = words
    if first == "grpobench":
        with absences(needs):
            ours(arguments)
    elif first == "make":
        demand_target(words)
    elif first == "pip":
        demand_extras(words)
    elif first == "python" and arguments:
        assert Path(arguments[0]).is_file(), f"{arguments[0]}: no block of the page is this file"
    else:
        pytest.fail(f"no executor for {shlex.join(words)}: add one to {Path(__file__).name}")


@contextlib.contextmanager
def absences(needs: Sequence[str]) -> Iterator[None]:
    """Within it, that something is absent is no failure where it is said to be needed."""
    try:
        yield
    except (ConfigError, DataError) as error:
        faults = error.faults if isinstance(error, ConfigError) else [str(error)]
        if not needs or not all(re.search(ABSENT, fault) for fault in faults):
            raise


def ours(words: list[str]) -> None:
    """A command of `grpobench`."""
    words = [filled(word, words) for word in words]
    command, options = parsed(words)
    if command in DRY:
        with few_findings():
            succeed([*words, *DRY_RUN])
        if command == "run":  # what a later command of the page reads
            seeds = seed_list(options.seeds) if options.seeds else (0, 1)
            furnish_experiment(options.out / Path(options.recipe).stem, seeds)
    elif command in SMALL:
        demand_task(options)
        model = options.target if command == "eval" else options.model
        harness = getattr(options, "through", "grpobench") != "grpobench" and not find_spec("lm_eval")
        if not harness and (model == "nano" or (Path(model) / "config.json").exists()):
            with environment(GRPOBENCH_CACHE="cache"):  # no warm start of two steps among the user's
                succeed([*words, *SMALL[command]])
    elif command in AS_THEY_STAND:
        furnish(command, options)
        with drawing("final_accuracy"), few_findings():
            succeed(words)
    elif command == "theory":
        succeed([*words, "--batches", "4"])
    elif command == "browse":
        if options.to or options.inspect or options.problem:  # else it serves until Ctrl-C
            if not options.folder.exists():
                write_many(options.folder, 6400)
            succeed(words)
    else:
        assert command in ONLY_PARSED, (
            f"no executor for grpobench {command}: add one to {Path(__file__).name}"
        )


@contextlib.contextmanager
def few_findings() -> Iterator[None]:
    """Within it, commands for all findings have two: test_finding_files.py reads every one, and
    test_plain_install.py lists all."""
    few = dict(itertools.islice(findings().items(), 2))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("finding", "finding_list"):
            patch.setattr(f"grpobench.runs.commands.{module}.findings", lambda: few)
        yield


def filled(word: str, words: Sequence[str]) -> str:
    if word == "NAME" and words[0] == "finding":
        return next(iter(findings()))
    return FILLED.get(word, word)


def context(words: Sequence[str]) -> click.Context:
    """What the command line makes of it: the context of the command that it names."""
    try:
        parsed = cli.app.make_context("grpobench", list(words))
        while isinstance(parsed.command, click.Group):
            name, command, remaining = parsed.command.resolve_command(
                parsed, [*parsed._protected_args, *parsed.args]
            )
            assert command is not None
            parsed = command.make_context(name, remaining, parent=parsed)
    except click.ClickException as error:
        pytest.fail(f"grpobench {shlex.join(words)} is not understood: {error.format_message()}")
    return parsed


def parsed(words: Sequence[str]) -> tuple[str, Options]:
    """The words of the command, such as `data list`, and its options."""
    chosen = context(words)
    return chosen.command_path.removeprefix("grpobench "), Options(**chosen.params)


def succeed(words: Sequence[str]) -> None:
    """Carry it out as `grpobench` does, which would turn errors into messages."""
    chosen = context(words)
    assert chosen.command.invoke(chosen) == 0, f"grpobench {shlex.join(words)} fails"


def demand_task(options: Options) -> None:
    """That the task exists; the harness has others."""
    if getattr(options, "through", "") != "lm-eval":
        succeed(["show", "task", options.task])


# What commands read


def furnish(command: str, options: Options) -> None:
    """Put there what a command reads, unless an earlier one of the page has made it."""
    for folder in [
        *getattr(options, "folders", ()),
        *([options.folder] if command in FOLDER else ()),
        *(getattr(options, "beside", None) or ()),
    ]:
        furnish_experiment(folder, (0, 1))
    for source in getattr(options, "sources", ()):
        furnish_log(source, options)


FOLDER = ("status", "report")
"""Commands whose `folder` is an experiment."""


def furnish_experiment(folder: Path, seeds: Sequence[int]) -> None:
    """A finished experiment with made-up numbers."""
    if not folder.exists():
        synthetic = Synthetic(
            arms=("grpo", "gspo"),
            tasks=("arithmetic",),
            seeds=tuple(seeds),
            steps=4,
            every=2,
            problems=8,
            test_problems=8,
            name=folder.name,
        )
        synthetic.write(folder.parent)


def furnish_log(source: Path, options: Options) -> None:
    """A log of two steps in the format that its name promises; a folder of runs where it has none."""
    if not source.suffix:
        for seed in (1, 2):
            furnish_log(source / f"grpo-seed{seed}" / "trainer_state.json", options)
        return
    if source.exists():
        return
    source.parent.mkdir(parents=True, exist_ok=True)
    if source.name == "trainer_state.json":
        source.write_text(trainer_state([trl_row(1, 0.25), trl_row(2, 0.5)], 2, 2))
    elif source.suffix == ".log":
        source.write_text(verl_console({step: verl_row(step, step / 4) for step in (1, 2)}, 2))
    elif source.suffix == ".csv":
        columns = [pair.partition("=")[0] for pair in options.maps]
        source.write_text("".join(f"{','.join(row)}\n" for row in (columns, ["1"] * 2, ["2"] * 2)))
    else:
        pytest.fail(f"nobody writes a log like {source}: add one to {Path(__file__).name}")


# Other programs


def demand_target(words: Sequence[str]) -> None:
    """That `make` knows what to make; nothing is made."""
    assert not (error := trial(tuple(words))), f"{shlex.join(words)}: {error}"


@cache
def trial(words: tuple[str, ...]) -> str:
    """What `make` says is wrong with a command that it carries nothing out of."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    return (done.stderr or "it fails") if done.returncode else ""


def demand_extras(words: Sequence[str]) -> None:
    """That the extras of `pip install "grpobench[EXTRA]"` exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requested in re.findall(r"grpobench\[([\w,-]+)\]", " ".join(words)):
        assert set(requested.split(",")) <= set(extras), (
            f"{shlex.join(words)}: extras are {', '.join(extras)}"
        )


# Commands as sentences name them


def demand_usage(text: str) -> None:
    """That the words of a synopsis, such as `grpobench data list [--json]`, exist; values may be anything."""
    usage = re.split(r"\s{2,}|\s#", text.strip())[0]
    at: list[click.Command] = [cli.app]
    for token in re.sub(r"[\[\]()…]", " ", usage.removeprefix("grpobench")).split():
        words = token.split("|")
        if token.startswith("-"):
            options = {option for command in at for option in option_names(command)}
            flag = words[0].partition("=")[0]
            assert flag in options, f"{usage}: {flag} is not one of {', '.join(sorted(options))}"
        elif deeper := [command.commands for command in at if isinstance(command, click.Group)]:
            for word in words:
                assert any(word in choices for choices in deeper), f"{usage}: there is no {word}"
            at = [choices[word] for word in words for choices in deeper if word in choices]


def option_names(command: click.Command) -> list[str]:
    """The options that a command of the command line takes."""
    if isinstance(command, cli.Command):
        module, function = command.function.split(".")
        params = cli.parameters(getattr(import_module(f"grpobench.runs.commands.{module}"), function))
    else:
        params = command.params
    return ["-h", "--help", *(name for param in params for name in param.opts)]


def is_usage(text: str) -> bool:
    return text.startswith("grpobench ")


def demand_json(text: str) -> None:
    """That it is JSON, or JSON on every line."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            json.loads(line)


def known_recipe(name: object) -> bool:
    return name in recipes()
