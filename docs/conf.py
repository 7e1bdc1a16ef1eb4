"""How Sphinx builds the site of these pages: `make site`, without a network."""

from __future__ import annotations

import re
from pathlib import Path

from grpobench.version import __version__

project = "grpobench"
author = "the grpobench authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["results", "figures", "notebooks"]
root_doc = "index"
# Words of a docstring between single backticks are code.
default_role = "literal"
autodoc_member_order = "bysource"
# Anchors of headings as GitHub makes them, so that links work in both places.
myst_heading_anchors = 4
# Pages of single algorithms and tasks are reached from tables; a test finds pages that nothing leads to.
suppress_warnings = ["toc.not_included"]

html_theme = "furo"
html_title = f"grpobench {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

# Pages above docs/ and the pages of the site that show them.
SHOWN = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)*)([\w./-]+)(#[^)]*)?\)")
ROOT = Path(__file__).parent


# Pages by caption of the navigation. It stands here and not in index.md, which is read elsewhere too.
NAVIGATION = {
    "Start": "start highlights python-api scripts one-step",
    "How to": "plugins environments one-gpu modify rewards comparisons learning-rates maps adapters "
    "warmstart data samplers backends sandbox callbacks preflight memory devices machines hand-over import "
    "papers publish records evaluation browse",
    "Reference": "reference/commands reference/settings reference/metrics reference/python run-folder "
    "glossary",
    "Algorithms and tasks": "algorithms/README dialects profiles tasks/README",
    "Findings": "theory claims findings judging results readable compute-curves gains stability calibration",
    "Guarantees": "guarantees faults performance gpu architecture contributing changelog",
}


def stay_within(text: str, page: Path) -> str:
    """Links to files that the site does not have become their names."""

    def link(match: re.Match[str]) -> str:
        label, up, target, anchor = match.groups()
        path = (page.parent / up / target).resolve()
        if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "results"):
            return match[0]
        shown = SHOWN.get(str(path.relative_to(ROOT.parent)))
        return f"[{label}](/{shown}{anchor or ''})" if shown else label

    return LINK.sub(link, text)


def change(source: list[str], page: Path) -> None:
    """Change the text of a page in place. Diagrams appear as text: to draw them takes another host."""
    source[0] = stay_within(source[0], page).replace("```mermaid", "```text")


def navigate(name: str, source: list[str]) -> None:
    """Give the first page the navigation."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(pages.split())
            source[0] += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{listed}\n```\n"


def make_accessible(app, page, template, context, tree) -> None:
    """Captions of the navigation say their level as headings, and what scrolls can be reached by key."""
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    context["body"] = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    navigation = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app):
    """Sphinx calls this."""
    app.connect("source-read", lambda app, name, source: change(source, ROOT / f"{name}.md"))
    app.connect("source-read", lambda app, name, source: navigate(name, source))
    app.connect("html-page-context", make_accessible, priority=900)
    app.connect("include-read", lambda app, path, parent, source: change(source, ROOT.parent / path.name))
