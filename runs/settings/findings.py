"""Read a finding: a TOML file with a claim, the tests that decide on it, and a recipe for each scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from grpobench.analysis.findings.attachment import mismatches, without_peaks
from grpobench.analysis.findings.bases import split_arm
from grpobench.analysis.findings.rule import Check, Control, Finding, Test, covers, reads_rates
from grpobench.analysis.tools.text import RATE_SUFFIX
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import RECIPES, Recipe, locate, read_table
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

FINDINGS = RECIPES / "findings"
SCALES = ("nano", "small", "full")
Kind = Literal["behavior", "cost", "numerics", "self-check"]
"""What a finding is about: what training does to a policy; seconds, FLOPs and memory; what follows from a
formula or from the format of numbers; the suite's own verdicts."""


@dataclass(frozen=True)
class FindingFile:
    """A finding's file as it was read.

    Its plain keys, `[[test]]`, `[[check]]` and `[[control]]` are the rule (`analysis/findings/rule.py`); the
    tables `nano`, `small` and `full` are recipes as any other, without a name of their own."""

    finding: Finding
    scales: Mapping[str, Mapping[str, Any]]
    """By scale, the table of its recipe."""
    text: str
    folder: Path
    """Where the files of a `module:Name` are looked for first."""
    redesign: str = ""
    """What changed since an earlier rule, and why; no part of the rule."""
    correction: str = ""
    """What was wrong in the rule by which the kept runs were registered. They are judged by today's rule, and
    the conclusion of the registered one stands beside. No part of the rule."""
    caveat: Mapping[str, str] = field(default_factory=dict)
    """By scale: what a reader of the conclusion should know of these runs, written after them; no part of
    the rule. A text in the file, instead of a table, is for every scale."""
    kind: Kind = "behavior"
    """What the finding is about. The page on two scales counts each kind apart. No part of the rule."""
    underpowered: Mapping[str, str] = field(default_factory=dict)
    """By scale, as `caveat`: why the finding runs although a test hardly finds what matters; no part of the
    rule."""
    asked_again_by: str = ""
    """The finding that asks the same with new runs and is counted instead of this one; no part of the
    rule."""
    expected_sd: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By scale and test: the standard deviation of the test's contrast that the number of seeds was chosen
    by, in the units in which differences are taken. It gives the power where no runs tell it. In the file, a
    number is for every scale and test, and a key names a test or a scale. No part of the rule."""
    seeds_per_base: Mapping[str, int] = field(default_factory=dict)
    """By scale: how many of the seeds each base has. The first base has the first so many, and no two bases
    share a seed; without it every base has every seed. No part of the rule."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Algorithms whose authors claim what the finding asks, each with the test that asks it; "" is the whole
    finding. Their pages show its conclusion. No part of the rule."""

    def seeds(self, scale: str) -> Sequence[int]:
        """The registered seeds of a scale, without reading the rest of its recipe; none if they are not a
        list."""
        seeds = self.scales[scale].get("seeds", [0])
        return seeds if isinstance(seeds, list) else ()

    def bases(self, scale: str) -> int:
        """How many bases a scale has: 1 without a sweep of them."""
        over = self.scales[scale].get("over", {})
        return len(over.get(f"model.{self.finding.bases}", (0,))) if self.finding.bases else 1

    def recipe(self, scale: str, sets: Sequence[str] = ()) -> Recipe:
        """The recipe of a scale, with `--set` applied. Raises ConfigError, also where a test of the verdict
        names what none of its runs is."""
        if scale not in self.scales:
            scale_names = ", ".join(self.scales)
            raise ConfigError([f"--scale {scale}: {self.finding.name} has none; it has {scale_names}"])
        name = f"{self.finding.name}-{scale}"
        table = {"summary": self.finding.claim, **self.scales[scale]}
        source = f"{self.finding.name} [{scale}]"
        recipe = self._with_seeds_of_bases(
            read_table(table, self.text, name, self.folder, sets, source), scale
        )
        configs = registered_runs(self.finding, recipe)
        bases = self.finding.bases
        cells = {(split_arm(config.arm, bases)[0], config.task.name) for config in configs}
        arm_names = ", ".join(dict.fromkeys(config.arm for config in configs))
        faults = [
            f"{_kind(measurement)} {measurement.name!r}: {_why(measurement)} compares learning "
            f"rates, and the recipe has one for each arm; write rates = [0.5, 1, 2] in [{scale}]"
            for measurement in self.finding.measured
            if reads_rates(measurement) and not recipe.rate_arms
        ]
        faults += [
            f"{_kind(measurement)} {measurement.name!r}: contrast: no run of {arm_pattern}; "
            f"the recipe has {arm_names}"
            for measurement in self.finding.measured
            for arm_pattern in measurement.contrast
            if not getattr(
                measurement, "also", False
            )  # a test that is left out where the scale lacks its arms
            and not any(covers(arm_pattern, *cell) for cell in cells)
        ]
        if bases and len({split_arm(config.arm, bases)[1] for config in configs}) < 2:
            faults.append(f"bases: no arm of [{scale}] has two values of {bases}; sweep it in [{scale}.over]")
        if faults:
            raise ConfigError(faults, source)
        return recipe

    def _with_seeds_of_bases(self, recipe: Recipe, scale: str) -> Recipe:
        """The recipe without the runs of seeds that are another base's."""
        count, seeds = self.seeds_per_base.get(scale), recipe.head.seeds
        if count is None:
            return recipe
        base_of = {config.arm: split_arm(config.arm, self.finding.bases)[1] for config in recipe.configs}
        bases = list(dict.fromkeys(base_of.values()))
        if len(seeds) != count * len(bases):
            fault = f"seeds: {len(bases)} bases with {count} seeds each take {count * len(bases)} seeds"
            raise ConfigError([f"{fault}, not {len(seeds)}"], f"{self.finding.name} [{scale}]")
        base_of_seed = {seed: bases[index // count] for index, seed in enumerate(seeds)}
        runs = [config for config in recipe.configs if base_of[config.arm] == base_of_seed[config.seed]]
        return replace(recipe, configs=tuple(runs))


def registered_runs(finding: Finding, recipe: Recipe) -> list[RunConfig]:
    """The runs that the rule of a finding reads: those at the arms' own learning rates, and all if something
    is measured over rates."""
    return recipe.runs() if finding.over_rates else recipe.runs_at_own_rates()


def _why(measurement: Test | Check) -> str:
    if getattr(measurement, "best_rate", False):
        return "best_rate"
    rates = [name for name in measurement.contrast if RATE_SUFFIX in name]
    return f"contrast {rates[0]}" if rates else f"outcome {measurement.outcome}"


def _kind(measurement: Test | Check) -> str:
    return {Check: "check", Control: "control"}.get(type(measurement), "test")


def findings() -> dict[str, Path]:
    """The findings that come with the suite, by name."""
    return {path.stem: path for path in sorted(FINDINGS.glob("*.toml"))}


def read_finding(source: str) -> FindingFile:
    """The finding of a name or path. Raises ConfigError with every fault of it."""
    path = locate(source, "finding", findings())
    text = strict.read_text(path, "finding")
    table = strict.read_toml(text, str(path))
    faults: list[str] = []
    scales = {name: table.pop(name) for name in SCALES if name in table}
    for name, recipe_table in scales.items():
        if not isinstance(recipe_table, Mapping):
            faults.append(f"{name}: must be a recipe, a table, not {strict.describe(recipe_table)}")
        elif "name" in recipe_table:
            faults.append(f"{name}.name: a finding's experiment is called {path.stem}-{name}; remove it")
    if not scales:
        faults.append(f"nothing to run: give a recipe in one of the tables {', '.join(SCALES)}")
    remarks = {name: str(table.pop(name, "")) for name in ("redesign", "correction", "asked_again_by")}
    by_scale = {name: _by_scale(table, name, scales, faults) for name in ("caveat", "underpowered")}
    again = remarks["asked_again_by"]
    others = {*findings(), *(beside.stem for beside in path.parent.glob("*.toml"))} - {path.stem}
    if again and again not in others:
        remedy = strict.did_you_mean(again, others, "give the name of another")
        faults.append(f"asked_again_by: no other finding {again!r}; {remedy}")
    kind = strict.convert(table.pop("kind", "behavior"), Kind, "kind", faults)
    seeds_per_base = _seeds_per_base(table, scales, faults)
    about_entries, sd_entries = table.pop("about", []), table.pop("expected_sd", {})
    finding = strict.build(Finding, {"name": path.stem, **table}, "", faults)
    tests = [] if isinstance(finding, strict.Bad) else finding.test
    about = _about(about_entries, tests, faults)
    expected_sd = _expected_sd(sd_entries, scales, tests, faults)
    if not isinstance(finding, strict.Bad):
        faults += [*mismatches(finding), *without_peaks(finding)]
        if seeds_per_base and not finding.bases:
            faults.append("seeds_per_base: the finding has no bases; name their setting in `bases`")
    if isinstance(finding, strict.Bad) or faults:
        raise ConfigError(faults, str(path))
    return FindingFile(
        finding,
        scales,
        text,
        path.parent,
        redesign=remarks["redesign"],
        correction=remarks["correction"],
        caveat=by_scale["caveat"],
        kind=kind,
        underpowered=by_scale["underpowered"],
        asked_again_by=again,
        expected_sd=expected_sd,
        seeds_per_base=seeds_per_base,
        about=about,
    )


def _by_scale(table: dict[str, Any], name: str, scales: Collection[str], faults: list[str]) -> dict[str, str]:
    """A remark by scale, taken out of the table: one text for all scales, or a table of them."""
    remark = strict.convert(table.pop(name, {}), str | dict[str, str], name, [])
    if remark is strict.BAD:
        faults.append(f"{name}: must be a text, or a table with a text for a scale")
        return {}
    if isinstance(remark, str):
        remark = dict.fromkeys(scales, remark)
    faults += _unknown_scales(name, remark, scales)
    return {scale: text for scale, text in remark.items() if text}


def _unknown_scales(name: str, by_scale: Collection[str], scales: Collection[str]) -> list[str]:
    """Faults of a table by scale that names one without a recipe."""
    has = f"no such scale here; it has {', '.join(scales)}"
    return [f"{name}.{scale}: {has}" for scale in by_scale if scale not in scales]


def _seeds_per_base(table: dict[str, Any], scales: Collection[str], faults: list[str]) -> dict[str, int]:
    """The number by scale, taken out of the table."""
    name = "seeds_per_base"
    by_scale = strict.convert(table.pop(name, {}), dict[str, int], name, [])
    if by_scale is strict.BAD or any(count < 1 for count in by_scale.values()):
        faults.append(f"{name}: must be a table with a number of seeds, 1 or more, for a scale")
        return {}
    faults += _unknown_scales(name, by_scale, scales)
    return dict(by_scale)


def _about(about_entries: Any, tests: Sequence[Test], faults: list[str]) -> dict[str, str]:
    """Algorithms with a test each: a list of algorithms, or a table of them with the names of tests."""
    about = strict.convert(about_entries, list[str] | dict[str, str], "about", [])
    if about is strict.BAD:
        faults.append("about: must be a list of algorithms, or a table with the name of a test for each")
        return {}
    about = dict.fromkeys(about, "") if isinstance(about, list) else about
    test_names = {"", *(test.name for test in tests)}
    faults += [
        f"about.{name}: no test {test!r}; it has {', '.join(sorted(filter(None, test_names)))}"
        for name, test in about.items()
        if test not in test_names and tests
    ]
    return about


def _expected_sd(
    sd_entries: Any, scales: Collection[str], tests: Sequence[Test], faults: list[str]
) -> Mapping[str, Mapping[str, float]]:
    """The standard deviations by scale and test, from one number for all or from a table. A key of it names a
    test, for every scale, or a scale, with a number or a table of tests."""
    entries = strict.convert(sd_entries, float | dict[str, float | dict[str, float]], "expected_sd", [])
    if entries is strict.BAD:
        faults.append(
            "expected_sd: must be a number above 0, or a table of such numbers by the name of a test or of a "
            "scale"
        )
        return {}
    names = [test.name for test in tests]
    entries = dict.fromkeys(scales, entries) if isinstance(entries, float) else entries
    of_all = {name: sd for name, sd in entries.items() if isinstance(sd, float) and name not in SCALES}
    of_scales = {
        name: dict.fromkeys(names, entry) if isinstance(entry, float) else entry
        for name, entry in entries.items()
        if name not in of_all
    }
    faults += _unknown_scales("expected_sd", of_scales, scales)
    by_scale = {scale: {**of_all, **of_scales.get(scale, {})} for scale in scales}
    for name, sd in sorted({entry for of_scale in by_scale.values() for entry in of_scale.items()}):
        if not sd > 0:
            faults.append(f"expected_sd: must be above 0, not {sd:g}")
        if names and name not in names:
            faults.append(f"expected_sd: no test {name!r}; it has {', '.join(names)}")
    return by_scale
