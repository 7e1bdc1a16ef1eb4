"""The page: one HTML file that opens from disk and contains its figures."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escape_html

from grpobench.analysis.figures.drawing import Drawing, png_bytes
from grpobench.analysis.figures.style import PALETTE
from grpobench.analysis.report.facts import Facts
from grpobench.analysis.report.methods import describe_methods
from grpobench.analysis.report.runs import find_samples, run_views
from grpobench.analysis.report.sources import describe_sources
from grpobench.analysis.report.text import (
    describe_frontiers,
    describe_head,
    describe_outlook,
    describe_subtitle,
    describe_verdict,
    list_collapses,
    list_failures,
    make_bibtex,
    summarize_run_statuses,
)
from grpobench.analysis.topics.runs import MOST_COLUMNS
from grpobench.analysis.topics.training import LITTLE, critic_explained, critic_warnings, list_constant

LARGEST_SVG = 1_000_000
"""Characters of SVG beyond which the page embeds a PNG instead."""
SCREEN = 1.8
"""Screen pixels per point of a figure: a figure made for a 7 inch column fills the page."""
COLOR = re.compile("#[0-9a-fA-F]{6}")
THEMED = {
    "#ffffff": "var(--paper)",
    "#262626": "var(--ink)",
    "#000000": "var(--ink)",
    "#333333": "var(--ink)",
    "#555555": "var(--soft)",
    "#767676": "var(--soft)",
    "#777777": "var(--soft)",
    "#888888": "var(--soft)",
    "#e6e6e6": "var(--grid)",
    "#eeeeee": "var(--grid)",
    "#f0f0f0": "var(--ground)",
    "#dcdcdc": "var(--line)",
    "#bdbdbd": "var(--line)",
    "#7a0b0b": "var(--alarm)",
    **{color: f"var(--c{place})" for place, color in enumerate(PALETTE)},
}
"""Color of a figure -> the page's variable, which has another color on a dark background."""


@dataclass(frozen=True)
class EmbeddedFigure:
    """A figure as the page shows it."""

    name: str
    title: str
    caption: str
    markup: Markup
    narrow: Markup
    """The same figure at the width of a column, for narrow screens."""


def element(drawing: Drawing, svg: str, name: str) -> Markup:
    """A figure as an element of the page with its SVG text, as an image where that is too long."""
    if len(svg) <= LARGEST_SVG:
        return Markup(inline(svg, name, drawing.title))
    data = base64.b64encode(png_bytes(drawing)).decode()
    return Markup(f'<img src="data:image/png;base64,{data}" alt="{escape_html(drawing.title)}">')


def inline(svg: str, name: str, title: str) -> str:
    """An SVG file as an element of a page: no prologue, no metadata, and ids that no other figure has."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    points = float(re.search(r'width="([\d.]+)pt"', body)[1])  # type: ignore[index]  # matplotlib always says
    body = re.sub(r'\b(width|height)="[\d.]+pt" ?', "", body, count=2)
    style = f"width:{points * SCREEN:.0f}px"
    body = COLOR.sub(lambda match: THEMED.get(match[0].lower(), match[0]), body)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape_html(title)}" style="{style}"', 1)


LINES = "Captions say what lines, bars and bands are. Point at a line to read its values."
SECTIONS: Sequence[tuple[str, str, Sequence[str], Sequence[str]]] = (
    ("Stability map", "", ("map",), ("frontier", "map")),
    ("Accuracy", "", ("final_accuracy",), ("accuracy", "accuracy_sampled", "accuracy_greedy")),
    ("Where a gain comes from", "", (), ("sources",)),
    ("Stability", "", ("survival",), ("stability", "survival")),
    ("Many samples", "", ("sampling",), ("pass_at_k", "majority")),
    ("Head to head", "", ("differences",), ("comparisons", "against_base", "aggregate", "improvement")),
    (
        "Learning curves",
        LINES,
        ("accuracy_updates", "accuracy_tokens", "accuracy_seconds", "compute_curve", "reward"),
        ("equal_budgets", "axes", "compute_curves", "budgets"),
    ),
    ("Rewards", LINES, ("components",), ("rewards",)),
    (
        "Training dynamics",
        LINES,
        ("entropy", "kl", "clip", "gradient", "length", "zero_signal", "sampled", "explained_variance"),
        ("critic",),
    ),
    ("Bias", "", ("bias", "bias_updates"), ("bias", "probes")),
    ("Later evaluations", "", (), ("evaluations", "agreement")),
    ("Costs", "", ("seconds", "rates"), ("costs",)),
    ("Search of settings", "", (), ("search",)),
)
"""(title, lead, figures, tables) of the page's sections in order. Empty sections are left out."""


def render_page(
    facts: Facts, drawn: Sequence[EmbeddedFigure], home: str = "..", papers: Mapping[str, str] | None = None
) -> str:
    """The whole page as text. `home` is the path from the page to the experiment folder, `papers` the paper
    of each algorithm by name."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    by_name = {embedded.name: embedded for embedded in drawn}
    sections = []
    for title, lead, figure_names, table_names in SECTIONS:
        embedded = [by_name[name] for name in figure_names if name in by_name]
        tables = [facts.tables[name] for name in table_names if name in facts.tables]
        if embedded or tables:
            if title == "Training dynamics":
                lead = " ".join([lead, *list_constant(facts.experiment)])
            sections.append({"title": title, "lead": lead, "figures": embedded, "tables": tables})
    experiment = facts.experiment
    views = run_views(facts, home)
    samples, faults = find_samples(experiment)
    return environment.get_template("report.html.j2").render(
        experiment=experiment,
        head=describe_head(facts),
        subtitle=describe_subtitle(facts),
        resolved=[
            describe_verdict(pair, facts.numbers.runs)
            for pair in facts.numbers.compared
            if pair.verdict != "unresolved"
        ],
        compared=facts.numbers.compared,
        outlook=describe_outlook(facts),
        frontiers=describe_frontiers(facts),
        sources=describe_sources(facts.numbers),
        planned=summarize_run_statuses(facts),
        alarms=facts.alarms,
        failures=list_failures(facts),
        collapsed=[] if experiment.sweep_values else list_collapses(facts),
        weak_critics=list(critic_warnings(critic_explained(experiment))),
        little=LITTLE,
        damaged=[run for run in experiment.runs if run.cut_lines or run.rewritten_rows],
        pairing=facts.pairing,
        sections=sections,
        runs=facts.tables["runs"],
        settings=facts.settings,
        most_columns=MOST_COLUMNS,
        provenance=facts.provenance,
        views=views,
        eventful=sum(bool(view.events) for view in views),
        samples=samples,
        faults=faults,
        methods=describe_methods(facts, papers or {}),
        bibtex=make_bibtex(experiment, papers or {}),
    )
