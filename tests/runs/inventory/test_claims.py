"""What a page of an algorithm says first is what kept tables say, at the time when it is made."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import probe, profile

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.analysis.findings.record import Record, read_kept
from grpobench.runs import cli
from grpobench.runs.inventory import claims, pages, showing, templating
from grpobench.runs.inventory.claims import Standing, standing
from grpobench.runs.inventory.findings.judging import judging_rule
from grpobench.runs.settings.findings import findings, read_finding
from grpobench.runs.tools.strict import ConfigError

KEPT = Path(__file__).parents[3] / "docs/results/findings"
Capture = pytest.CaptureFixture[str]
every = pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=ALGORITHMS.keys())


@dataclass(frozen=True)
class Half(GRPO):
    """A user's class, which says nothing of itself.

    Degenerate cases: those of GRPO.
    """

    name = "half"


class Alike(GRPO):
    """A user's class that has the name of GRPO, and is another."""


@every
def test_every_algorithm_says_what_its_authors_claim(cls: type[Algorithm[Any]]) -> None:
    assert 40 < len(cls.claim) < 330 and cls.claim.endswith(".")
    assert len(re.findall(r"[.:;] ", cls.claim)) <= 3, "one or two sentences"
    assert cls.claim not in (other.claim for other in ALGORITHMS.values() if other is not cls)


def test_a_finding_names_algorithms_and_tests_that_there_are() -> None:
    for name in findings():
        study = read_finding(name)
        assert study.about.keys() <= ALGORITHMS.keys()
        assert set(study.about.values()) <= {"", *(test.name for test in study.finding.test)}


def test_whom_a_finding_is_about_is_no_part_of_its_rule(tmp_path: Path) -> None:
    """Registrations hold the digest of the rule: it is the same without `about`, and with another one."""
    names = [name for name in findings() if read_finding(name).about]
    assert len(names) > 10
    for name in names:
        path, text = tmp_path / f"{name}.toml", findings()[name].read_text(encoding="utf-8")
        for about in ("", 'about = ["mine"]\n'):
            path.write_text(re.sub(r"^about = .*\n", about, text, flags=re.M), encoding="utf-8")
            other = read_finding(str(path))
            assert list(other.about) == (["mine"] if about else [])
            assert other.finding.digest == read_finding(name).finding.digest


def test_a_caveat_is_no_part_of_the_rule_and_stands_below_the_conclusion(tmp_path: Path) -> None:
    path, text = tmp_path / "distillation.toml", findings()["distillation"].read_text(encoding="utf-8")
    path.write_text(re.sub(r"^caveat = .*\n", "", text, flags=re.M), encoding="utf-8")
    with_caveat, without = read_finding("distillation"), read_finding(str(path))
    assert with_caveat.caveat and not without.caveat
    assert with_caveat.finding.digest == without.finding.digest
    page = (KEPT.parents[1] / "findings" / "distillation.md").read_text(encoding="utf-8")
    assert f"**Caveat.** {with_caveat.caveat['nano']}" in " ".join(page.split())


def test_a_caveat_may_be_of_one_scale() -> None:
    """On the page it stands there alone, and a text for all scales stands at each."""
    study = read_finding("float16-gap")
    assert list(study.caveat) == ["small"] and list(read_finding("critic-cost").caveat) == ["nano", "small"]
    page = (KEPT.parents[1] / "findings" / "float16-gap.md").read_text(encoding="utf-8")
    nano, small = page.split("## Small scale")
    assert "**Caveat.**" in small and "**Caveat.**" not in nano


def test_a_remark_of_no_scale_is_refused(tmp_path: Path) -> None:
    path, text = tmp_path / "float16-gap.toml", findings()["float16-gap"].read_text(encoding="utf-8")
    path.write_text(text.replace("caveat = { small", "caveat = { smal"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"caveat\.smal: no such scale here; it has nano, small"):
        read_finding(str(path))
    path.write_text(text.replace("caveat = { small", "underpowered = 3\ncaveat = { small"), encoding="utf-8")
    with pytest.raises(ConfigError, match="underpowered: must be a text, or a table with a text for a scale"):
        read_finding(str(path))


@pytest.mark.parametrize(
    ("about", "fault"),
    [
        ('"gspo"', "about: must be a list of algorithms, or a table"),
        ("[1]", "about: must be a list of algorithms, or a table"),
        ("{ gspo = 1 }", "about: must be a list of algorithms, or a table"),
        ('{ gspo = "nothing" }', "about.gspo: no test 'nothing'; it has "),
    ],
)
def test_faults_of_about_are_named(about: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "gap.toml"
    source = findings()["long-run-collapse"].read_text(encoding="utf-8")
    path.write_text(source.replace('about = ["gspo"]', f"about = {about}"), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(fault)):
        read_finding(str(path))


def changed(path: Path, difference: float) -> Record:
    """A kept table in which the first arm of every contrast is so much above the second in each run."""
    table = json.loads(path.read_text(encoding="utf-8"))
    tests = table["registration"]["finding"]["test"]
    for row in table["runs"]:
        for test in tests:
            if test["name"] in row["values"]:
                sign = test["contrast"].get(row["arm"], 0.0)
                row["values"][test["name"]] = 0.5 + sign * difference + 1e-3 * (row["seed"] % 3)
    path.write_text(json.dumps(table), encoding="utf-8")
    return read_kept(path)


def test_a_page_shows_what_the_kept_table_says(tmp_path: Path) -> None:
    """The table of offline-dpo says that DPO is worse; where its runs are better, the page says so."""
    shutil.copy(KEPT / "offline-dpo-nano.json", tmp_path)
    record, study = read_kept(tmp_path / "offline-dpo-nano.json"), read_finding("offline-dpo")
    result = record.result(judging_rule(study, record))
    page = page_of("dpo", tmp_path)
    assert f"**{result.label}**" in page
    shown = re.search(r'Deciding test, "([^"]+)": (\S+ points)', page)
    deciding = result.deciding
    assert shown and shown[1] == deciding.test.name
    assert float(shown[2].split()[0].replace("−", "-")) == pytest.approx(
        100 * deciding.effect.value, abs=0.06
    )
    for difference in (0.1, -0.1):
        record = changed(tmp_path / "offline-dpo-nano.json", difference)
        other = record.result(judging_rule(study, record))
        after = page_of("dpo", tmp_path)
        assert f"**{other.label}** (exploratory: the rule was corrected after the runs; as reg" in after
        assert after != page
        assert f'"{other.deciding.test.name}": {"+" if other.deciding.effect.value > 0 else "−"}' in after
        page = after


def page_of(name: str, tables: Path) -> str:
    """The page of an algorithm, in one line."""
    cls = ALGORITHMS[name]
    row = dict(pages.facts(cls, standing(tables)))
    parts = {part: pages.part_rows(row[part], {}) for part in ("settings", "metrics")}
    text = templating.templates().get_template("algorithm.md.j2").render({**row, **parts})
    return " ".join(text.split())


def test_without_a_table_a_page_names_the_command(tmp_path: Path) -> None:
    page = page_of("gspo", tmp_path)
    assert (
        "- long-run-collapse: no result is kept; `grpobench finding run long-run-collapse` makes one." in page
    )
    assert "**unresolved**" not in page


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "long-run-collapse-nano.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"long-run-collapse-nano\.json: no kept finding"):
        Standing(tmp_path).of(ALGORITHMS["gspo"])


def test_an_algorithm_with_a_test_of_its_own_has_the_verdict_of_that_test() -> None:
    row = standing().of(ALGORITHMS["kl_cov"])["here"]["findings"][0]
    rows = standing().of(ALGORITHMS["dapo"])["here"]["findings"]
    # the first is at nano; a larger scale follows
    entire_finding = next(finding_row for finding_row in rows if finding_row["finding"] == "clip-higher")
    (single_test,) = (finding_row for finding_row in rows if finding_row["finding"] == "averaging")
    tests = read_kept(KEPT / "averaging-nano.json").result().tests
    (of_dapo,) = (judged for judged in tests if judged.test.name == single_test["test"])
    assert (single_test["conclusion"], single_test["decides"]) == (of_dapo.label, True)
    result = read_kept(KEPT / "clip-higher-nano.json").result()
    judged = next(
        judged for judged in result.tests if judged.test.name == "KL-Cov keeps more at equal success"
    )
    assert (row["test"], row["conclusion"], row["decides"]) == (judged.test.name, judged.label, False)
    assert (entire_finding["conclusion"], entire_finding["decides"]) == (result.label, True)
    # nor does it have the level of a test that decides: page, terminal and index say so
    words, page = f"{judged.label} (secondary test)", " ".join(page_of_checkout("kl_cov").split())
    assert words in claims.finding_words(row) and f"**{judged.label}** (secondary test)" in page
    assert claims.standing_cell([row]).endswith("(secondary test)")
    assert "secondary" not in claims.finding_words(single_test) + claims.standing_cell(rows)


@every
def test_the_first_screen_comes_before_the_formula(cls: type[Algorithm[Any]]) -> None:
    top = page_of_checkout(cls.name).partition("\n## Formula\n")[0]
    flat = " ".join(top.split())
    assert flat.index(cls.claim) < flat.index("**Here.**")
    here = standing().of(cls)["here"]
    assert (claims.UNTESTED in flat) == (not here["findings"])
    has_profile = bool(standing().scores(cls.name)["marks"])
    assert not (has_profile and claims.unprofiled(cls.name))
    assert ("| stands | on |" in top) == has_profile
    # what the probes cannot run says why, and what they have not run yet says with which command
    assert (claims.no_profile(cls.name, "`") in flat) == (not has_profile)
    assert len(top.splitlines()) <= 50, "more than a screen"


@cache
def written() -> Mapping[str, str]:
    return pages.algorithm_pages(templating.templates(), standing())


def page_of_checkout(name: str) -> str:
    return written()[f"algorithms/{name}.md"]


def test_the_profile_of_a_page_has_every_probe_once_with_its_mark() -> None:
    means = {"a": {"x": 0.9, "y": 0.1}, "b": {"x": 0.5, "y": 0.5}, "c": {"x": 0.5, "y": 0.9}}
    made = Standing(None)
    vars(made)["profile"] = profile(means, [probe("x"), probe("y")])
    scores = made.scores("a")
    assert scores["others"] == 2
    assert [shown.partition(" ±")[0] for shown in scores["marks"]["good"]] == ["the x 0.90"]
    assert [shown.partition(" ±")[0] for shown in scores["marks"]["bad"]] == ["the y 0.10"]
    assert made.scores("d")["marks"] == {}
    assert claims.profile_lines(made.scores("d")) == [claims.no_profile("d")]
    for name in ALGORITHMS:
        marks = standing().scores(name)["marks"]
        titles = [probe.title for probe in standing().profile.probes.values()]
        shown = [next(t for t in titles if line.startswith(t)) for lines in marks.values() for line in lines]
        assert len(shown) == len(set(shown)) <= len(titles)


def test_a_class_of_a_user_without_claim_is_shown_without_ours() -> None:
    shown = showing.show_algorithm(Half)
    assert (shown["claim"], shown["here"]) == ("", {})
    assert shown["profile"]["marks"] == {} and shown["profile"]["name"].endswith("test_claims:Half")
    text = showing.as_text(shown)
    assert "\nhere\n" not in text and "\nclaim\n" not in text
    assert re.search(r"grpobench profile \S+test_claims:Half makes one, or says why it cannot\.", text)
    other = showing.show_algorithm(Alike)  # named grpo, and not GRPO
    assert other["here"] == {} and other["profile"]["marks"] == {}


def test_a_class_beside_the_recipe_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n\nfrom grpobench.algorithms.grpo import GRPO\n\n\n"
        '@dataclass(frozen=True)\nclass Half(GRPO):\n    name = "half"\n'
        '    claim = "Half is twice as good."\n'
    )
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", "algorithm", "mine:Half"]) == 0
    text = capsys.readouterr().out
    assert "claim\n  Half is twice as good.\nhere\n  No finding here tests this claim.\nprofile\n" in text
    assert "  It has no profile yet: grpobench profile mine:Half makes one, or says why it cannot." in text


def test_the_terminal_says_the_same_as_the_page(capsys: Capture) -> None:
    assert cli.main(["show", "algorithm", "gspo"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    page = " ".join(page_of_checkout("gspo").split())
    row = standing().of(ALGORITHMS["gspo"])["here"]["findings"][0]
    assert (
        f"claim {ALGORITHMS['gspo'].claim} here {row['finding']} ({row['scale']}): {row['conclusion']}"
        in text
    )
    for part in (claims.effect_sentence(row), *standing().scores("gspo")["marks"]["good"]):
        assert part in text and part in page


def test_without_kept_tables_it_is_said_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "results_folder", lambda: None)
    lines = claims.here_lines(standing().of(ALGORITHMS["gspo"])["here"])
    assert "kept results come with a checkout of the project" in " ".join(" ".join(lines).split())
