"""What the page holds beside tables and figures: samples, runs with their events, methods."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from helpers.pages import words
from helpers.synthetic import Synthetic

from grpobench.algorithms import ALGORITHMS
from grpobench.analysis.report import references
from grpobench.analysis.report import runs as views
from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.methods import describe_draws, describe_methods
from grpobench.analysis.report.page import render_page
from grpobench.analysis.report.pairs import pairs_by_task
from grpobench.analysis.report.samples import find_samples, shortened
from grpobench.analysis.report.text import CITED, bibtex_entry, make_bibtex
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.runs import RecipeKey

SMALL = {"steps": 12, "every": 3, "problems": 4, "test_problems": 8}
PAPERS = {
    "grpo": "DeepSeekMath, arXiv:2402.03300",
    "ppo": "Proximal Policy Optimization Algorithms, arXiv:1707.06347; GAE, arXiv:1506.02438",
    "dpo": "Direct Preference Optimization, arXiv:2305.18290",
}


def wrote(root: Path, run: str, step: int, problem: str, texts: list[str]) -> Path:
    """One row of rollouts; the first text is correct."""
    completions = [
        {"text": text, "tokens": 3, "scores": {"correct": float(i == 0)}, "reward": float(i == 0)}
        for i, text in enumerate(texts)
    ]
    row = {"problem": problem, "prompt": f"Q:{problem}", "completions": completions}
    path = root / run / "rollouts" / f"step-{step}.jsonl.zst"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zstandard.compress((json.dumps(row) + "\n").encode()))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Synthetic(  # type: ignore[arg-type]
        **SMALL,
        arms=("grpo", "ppo"),
        tasks=("arithmetic",),
        seeds=(1, 2),
        falls={("grpo", "arithmetic", 1): 6},
    ).write(tmp_path)


def test_a_long_text_loses_its_middle() -> None:
    assert shortened("x" * 1000) == "x" * 350 + " […300 characters…] " + "x" * 350


def test_samples_are_of_the_same_problem_escaped_and_told_apart(root: Path) -> None:
    wrote(root, "grpo-arithmetic-s1", 3, "1+2", ["<script>alert(1)</script> 3", "4", "5"])
    wrote(root, "ppo-arithmetic-s1", 3, "1+2", ["<script>alert(1)</script> 4", "4", "5"])
    (sample,), faults = find_samples(load(root))
    assert (sample.step, sample.problem, faults) == (3, "1+2", [])
    assert [completion.arm for completion in sample.written] == ["grpo", "ppo"]
    assert sample.written[0].verdict_line == "correct 1, reward 1, 1 of 3 in the group correct"
    page = words(root)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; <del>3</del><ins>4</ins>" in page


def test_a_damaged_file_of_rollouts_is_named_and_the_rest_stands(root: Path) -> None:
    wrote(root, "grpo-arithmetic-s1", 3, "1+2", ["3"])
    wrote(root, "ppo-arithmetic-s1", 3, "1+2", ["3"]).write_bytes(b"not zstandard")
    samples, (fault,) = find_samples(load(root))
    assert len(samples) == 1 and fault.startswith("ppo-arithmetic-s1/rollouts/step-3.jsonl.zst: damaged")
    assert fault[:40] in words(root)


def test_runs_with_events_stand_first_with_their_curves_and_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "grpo-arithmetic-s1" / "log.txt").write_text("")
    run_views = views.run_views(gather(load(root)), "..")
    assert len(run_views) == 4 and run_views[0].name == "grpo-arithmetic-s1"
    assert any("from update 6" in event for event in run_views[0].events)
    assert ("log.txt", "../grpo-arithmetic-s1/log.txt") in run_views[0].links
    assert run_views[0].curves.count("<polyline") == 3 and run_views[0].curves.count("<line") == 3 * len(
        run_views[0].events
    )
    monkeypatch.setattr(views, "CURVES", 1)
    fewer = views.run_views(gather(load(root)), "..")
    assert [bool(view.curves) for view in fewer] == [True, False, False, False]
    steps, values = views.thinned(*2 * (views.np.arange(1000.0),))
    assert len(steps) == views.POINTS and values[0] == 2.0  # the mean of 0 to 4


def test_methods_cite_what_was_used_and_nothing_else(root: Path) -> None:
    facts = gather(load(root))
    methods_text = describe_methods(facts, PAPERS)
    assert methods_text.startswith(
        "We trained grpo, ppo on arithmetic with 2 seeds (1, 2) per arm, from the policy nano"
    )
    assert "16 prompts with 8 completions each" in methods_text and "torch 2.13.0" in methods_text
    entries = make_bibtex(facts.experiment, PAPERS)
    assert re.findall(r"@misc\{(.*),", entries) == [
        "arxiv-2402.03300",
        "arxiv-1707.06347",
        "arxiv-1506.02438",
        "arxiv-1912.01703",
    ]
    assert "  author = {John Schulman and Filip Wolski and Prafulla Dhariwal and Alec Radford and" in entries
    assert "{{High-Dimensional Continuous Control Using Generalized Advantage Estimation}}" in entries
    assert "dpo" not in methods_text and "2305.18290" not in entries


UNKNOWN_AUTHORS = {"2602.07078", "2607.07508", "2609.00444", "2609.13443"}
"""Papers whose own record of authors was not at hand."""


def test_every_paper_of_an_algorithm_has_its_authors_and_its_title() -> None:
    cited = {
        citation["number"]: citation["title"].strip()
        for cls in ALGORITHMS.values()
        for citation in CITED.finditer(cls.paper)
    }
    cited |= {number: title for title, number in references.LIBRARIES.values()}
    assert cited.keys() - references.AUTHORS.keys() == UNKNOWN_AUTHORS
    assert references.AUTHORS.keys() <= cited.keys()
    for number, title in cited.items():
        entry = bibtex_entry(number, title)
        assert "et al" not in entry and entry.split("title = {{")[1][0].isupper(), entry
        (field,) = re.findall(r"  (author|key) = \{(.+)\},", entry)
        assert field[0] == ("key" if number in UNKNOWN_AUTHORS else "author")
        names = field[1].split(" and ")
        assert (
            len(names) <= references.MOST + 1 and "others" not in names[:-1] and len({*names}) == len(names)
        )


def settings_of(**values: dict[str, str]) -> dict[str, RecipeKey]:
    """Settings of the section `train` or `modify`, with a value for each arm."""
    keys = {
        "prompts": "train.prompts_per_step",
        "curriculum": "train.curriculum",
        "schedule": "modify.schedule",
    }
    return {
        keys[name]: RecipeKey(keys[name], by_arm, len({*by_arm.values()}) > 1, frozenset())
        for name, by_arm in values.items()
    }


SHARED = "share a schedule of problems, except where an algorithm has its own."


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ""),
        (
            {"curriculum": {"a": "", "b": ""}, "prompts": {"a": "8", "b": "8"}},
            f"Runs on the same task, with the same seed {SHARED}",
        ),
        (
            {"curriculum": {"a": "", "b": ""}, "prompts": {"a": "8", "b": "16"}},
            f"Runs on the same task, with the same seed and with the same number of prompts {SHARED}",
        ),
        ({"curriculum": {"a": "m:Easy", "b": "m:Easy"}}, "Problems of a step: curriculum m:Easy."),
        (
            {"curriculum": {"a": "", "b": "", "c": "m:Easy", "log": "–"}, "schedule": {"a": "uniform"}},
            (
                "Problems of a step: curriculum m:Easy (c). Runs of a, b on the same task, with the same "
                f"seed {SHARED} The logs of log do not say how problems were chosen."
            ),
        ),
        (
            {"curriculum": {"a": "", "b": ""}, "schedule": {"a": "uniform", "b": "ads"}},
            "Problems of a step: schedule of problems ads (b).",
        ),
    ],
)
def test_methods_say_of_each_arm_how_its_problems_were_chosen(
    settings: dict[str, dict[str, str]], expected: str
) -> None:
    assert describe_draws(settings_of(**settings)) == expected


def test_the_p_of_a_difference_and_that_of_an_equivalence_have_columns_of_their_own() -> None:
    effect = {"effect": 0.1, "low": 0.05, "high": 0.15, "p": 0.01, "p_adjusted": 0.01, "pairs": 1}
    other_fields = {"margin": 0.02, "p_equivalence": 0.02, "p_equivalence_holm": 0.02, "detectable": 0.1}
    other_fields |= dict.fromkeys(
        ("detectable_low", "detectable_high", "power", "power_equivalence", "improvement"), 0.5
    )
    better = Comparison("t", "a", "b", (1,), (0.1,), **effect, **other_fields, verdict="better", needs="")
    (task,) = pairs_by_task([better, replace(better, verdict="worse"), replace(better, verdict="equivalent")])
    shown = {row.verdict: (row.p, row.equivalence) for row in task.rows}
    assert shown["better"] == shown["worse"] == ("p 0.010", "") and shown["equivalent"] == ("", "p 0.020")


def test_tables_and_headline_of_the_page_have_the_names_of_its_figures(root: Path) -> None:
    labels = {"grpo": "GRPO", "ppo": "PPO", "arithmetic": "Arithmetic"}
    facts = gather(Numbers(load(root), Shown(labels=labels)))
    page = render_page(facts, [])
    overview, other_sections = page[page.index('id="table-overview"') :].split("</table>", 1)
    assert "GRPO" in overview and "Arithmetic" in overview and "grpo" not in overview
    assert "GRPO − PPO" in other_sections and "grpo − ppo" not in other_sections
    assert "GRPO on Arithmetic 1 of 2" in page.split("</p>")[2] + page.split("</p>")[1]
    assert facts.tables["overview"].rows[0][0] == "grpo"  # JSON and CSV have the recipe's names
