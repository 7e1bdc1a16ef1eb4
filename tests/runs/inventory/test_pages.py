"""Pages on algorithms and dialects: what is committed is what the code says."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import CLAIMS, Algorithm
from grpobench.algorithms.modifiers import EVIDENCE, Modifiers
from grpobench.runs import cli
from grpobench.runs.inventory import folders, pages, showing, templating
from grpobench.runs.inventory.templating import cell
from grpobench.runs.tools.strict import ConfigError

written = cache(pages.pages)
DOCS = Path(__file__).parents[3] / "docs"
every = pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def test_committed_pages_are_those_that_the_command_writes() -> None:
    expected = written()
    here = {path.relative_to(DOCS).as_posix() for path in (DOCS / "algorithms").glob("*.md")}
    stale = [
        name
        for name, text in expected.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    gone = sorted(here - expected.keys())
    assert (stale, gone) == ([], []), "run `grpobench docs`"


@every
def test_an_algorithm_says_what_its_page_needs(cls: type[Algorithm[Any]]) -> None:
    assert cls.formula and cls.departures and cls.summary
    assert cls.evidence.startswith(("verified: ", "reconstruction: "))
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", cls.paper) or cls.paper
    assert len(showing.degenerate(cls)) > 20, "the docstring needs a paragraph `Degenerate cases: …`"
    assert showing.paragraphs(cls)[1], "the docstring says nothing but degenerate cases"
    undocumented = [row["name"] for row in showing.settings(cls) if not row["summary"]]
    assert not undocumented


@every
def test_a_subclass_inherits_no_claim_of_its_base(cls: type[Algorithm[Any]]) -> None:
    """A class of a user's that changes GRPO is not what GRPO's paper and evidence are about."""

    @dataclasses.dataclass(frozen=True)
    class Heir(cls):  # type: ignore[valid-type, misc]
        name = "heir"
        departures = "one"

    assert {claim: getattr(Heir, claim) for claim in CLAIMS} == dict.fromkeys(CLAIMS, "") | {
        "departures": "one"
    }
    assert (Heir.cost, Heir.metrics) == (cls.cost, cls.metrics)  # it still computes what its base does
    shown = showing.show_algorithm(Heir)
    assert [shown[claim] for claim in CLAIMS] == ["", "", "", "", "one", ""]


def test_every_group_of_modifiers_says_what_it_was_checked_against() -> None:
    rows = showing.settings(Modifiers)
    assert all(row["summary"] for row in rows)
    first = {row["name"] for row in rows if not row["name"].startswith(("ads_", "credit_"))}
    beside = {"overlong_penalty", "entropy_step", "entropy_limit", "reference_mix"}
    assert EVIDENCE.keys() == first - beside
    assert all(text.startswith(("verified: ", "reconstruction: ")) for text in EVIDENCE.values())
    shown = re.findall(r"^\| `(\w+)` \|", written()["modify.md"], re.M)
    assert shown == [row["name"] for row in rows]


@every
def test_an_algorithm_says_nothing_twice(cls: type[Algorithm[Any]]) -> None:
    sentences = re.split(r"(?<=[.;]) ", f"{cls.departures} {cls.evidence}")
    assert sorted(sentences) == sorted(set(sentences))


AUTHORS = "bnpo dppo fipo flowrl gigpo gpg gvpo hierarchical_grpo m2po maxrl mc_grpo negative_grpo otb rae"
AUTHORS += " real rebel reinforce_pp reinforce_pp_baseline vespo"
"""Algorithms that were held against their authors' code."""


@pytest.mark.parametrize("name", AUTHORS.split())
def test_facts_from_authors_code_name_repository_commit_and_file(name: str) -> None:
    evidence = ALGORITHMS[name].evidence
    assert evidence.startswith("verified: ") and "reconstruction" not in evidence
    assert re.search(r"\([\w-]+/[\w-]+@[0-9a-f]{7,}, [\w/.-]+\.(py|sh)\b", evidence)


def test_no_page_says_of_an_algorithm_that_is_here_that_it_is_not() -> None:
    """A sentence such as `X (arXiv:N) is not here` names no paper that an algorithm is of."""
    papers = {number for cls in ALGORITHMS.values() for number in re.findall(r"arXiv:([\d.]+\d)", cls.paper)}
    for name, text in written().items():
        for sentence in re.split(r"(?<=[.:;])\s", " ".join(text.split())):
            if "not here" in sentence:
                absent = set(re.findall(r"arXiv:([\d.]+\d)", sentence))
                assert not absent & papers, f"{name}: {sentence}"


def test_the_index_has_a_line_for_each() -> None:
    index = written()["algorithms/README.md"]
    assert not [name for name in ALGORITHMS if f"| [`{name}`]({name}.md) |" not in index]


def explained(row: dict[str, Any], text: str) -> bool:
    """Whether a page has a table row with the choices, or unit, and the meaning of a setting or metric."""
    words = [row["type"], row["summary"]] if "summary" in row else [row["unit"], row["definition"]]
    start, end = f"| `{row['name']}` |", " | ".join(map(cell, words)) + " |"
    return any(line.startswith(start) and end in line for line in text.splitlines())


@every
def test_every_setting_and_metric_is_explained_on_the_page_or_in_the_index(cls: type[Algorithm[Any]]) -> None:
    page, index = written()[f"algorithms/{cls.name}.md"], written()["algorithms/README.md"]
    rows = showing.settings(cls) + [dataclasses.asdict(metric) for metric in cls.metrics]
    for row in rows:
        # exactly one: a setting that differs from the common one stands on its page, in its own words
        assert explained(row, page) != explained(row, index), row["name"]


def test_pages_of_algorithms_and_findings_that_are_gone_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "pages", lambda tables: dict(written()))
    folder = tmp_path / "algorithms"
    folder.mkdir()
    (folder / "gone.md").write_text(f"{pages.MARK} from algorithms/gone.py; do not edit. -->\n# gone\n")
    (folder / "mine.md").write_text("# mine\n")
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "gone.md").write_text(f"{pages.MARK} from docs/results/findings. -->\n")
    assert cli.main(["docs", str(tmp_path)]) == 0
    names = {path.name for path in folder.glob("*.md")}
    assert names == {"README.md", "mine.md", *(f"{name}.md" for name in ALGORITHMS)}
    assert not (tmp_path / "findings" / "gone.md").exists()
    assert all(text.startswith(pages.MARK) for text in written().values())


def test_needs_name_the_settings_that_add_to_them() -> None:
    needs = showing.needs(ALGORITHMS["ppo"])
    assert "trains policy, critic" in needs
    assert "with critic = shared: trains policy, value head" in needs
    assert "with beta above 0: one more forward pass per step of: reference" in needs
    assert "may use recorded rollouts or preferences" in " ".join(showing.needs(ALGORITHMS["dpo"]))


def test_files_of_others_are_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pages, "pages", lambda tables: dict(written())
    )  # once made, the same for every folder
    (tmp_path / "dialects.md").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"dialects\.md was not written by"):
        pages.write(tmp_path)
    assert (tmp_path / "dialects.md").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "algorithms").exists()
    with pytest.raises(ConfigError, match="not a folder"):
        pages.write(tmp_path / "dialects.md")


def test_pages_go_to_the_checkout_only_from_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page_folders: list[Path] = []
    monkeypatch.setattr(pages, "write", lambda folder, app: page_folders.append(folder) or [])
    monkeypatch.chdir(DOCS / "algorithms")
    assert cli.main(["docs"]) == 0 and page_folders == [DOCS.resolve()]
    monkeypatch.chdir(tmp_path)
    assert cli.main(["docs"]) == 2
    assert f"not in the checkout {DOCS.parent.resolve()}; name one" in capsys.readouterr().err
    installed = tmp_path / "site-packages" / "grpobench" / "runs" / "pages.py"
    installed.parent.mkdir(parents=True)
    monkeypatch.setattr(folders, "__file__", str(installed))
    assert cli.main(["docs"]) == 2
    assert "not a checkout of the project; name a folder: grpobench docs DIR" in capsys.readouterr().err
    assert cli.main(["docs", "here"]) == 0 and page_folders[1:] == [Path("here")]


def test_pages_reword_what_registered_rules_say() -> None:
    """The texts of rules keep their digests; pages say them in today's words, also across lines."""
    environment = templating.templates()
    text = environment.from_string("{{ words }}|{{ words|fold }}").render(words="half as\ndear again")
    assert text == "1.5 times as expensive|1.5 times as expensive"
    shown = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.name != "changelog.md"]
    assert len(shown) > 100
    assert [name for name in shown if re.search(r"\bdear\b", (DOCS / name).read_text(encoding="utf-8"))] == []
