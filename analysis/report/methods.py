"""What a paper says of how its numbers were made: a paragraph, and BibTeX of what was used."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grpobench.analysis.logs.changes import attempts
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.report.facts import Facts
from grpobench.analysis.summary.headline import decoding, headline_of
from grpobench.analysis.tools.text import listed

CITED = re.compile(r"(?P<title>[^;]+?), arXiv:(?P<number>\d{4}\.\d{4,5})")
LIBRARIES: Mapping[str, tuple[str, str]] = {
    "torch": ("PyTorch: An Imperative Style, High-Performance Deep Learning Library", "1912.01703"),
    "transformers": (
        "HuggingFace's Transformers: State-of-the-art Natural Language Processing",
        "1910.03771",
    ),
    "vllm": (
        "Efficient Memory Management for Large Language Model Serving with PagedAttention",
        "2309.06180",
    ),
}
"""Library -> title and arXiv number of the paper that its authors ask to be cited."""


def used_papers(matrix: Matrix, papers: Mapping[str, str]) -> dict[str, str]:
    """Algorithm -> its paper, of the algorithms that runs name; `papers` are those of all."""
    names = dict.fromkeys(_algorithm(config) for config in matrix.configs.values())
    return {name: papers[name] for name in names if papers.get(name)}


def _algorithm(config: Mapping[str, object]) -> str:
    table = config.get("algorithm")
    return str(table.get("name", "")) if isinstance(table, Mapping) else ""


def versions(matrix: Matrix) -> dict[str, list[str]]:
    """Library -> the versions that the runs' last attempts had."""
    found: dict[str, dict[str, None]] = {}
    for run in matrix.runs:
        tried = attempts(run)
        told = tried[-1].get("versions") if tried else None
        for name, version in (told if isinstance(told, Mapping) else {}).items():
            found.setdefault(str(name), {})[str(version)] = None
    return {name: sorted(known) for name, known in sorted(found.items())}


def methods(facts: Facts, papers: Mapping[str, str]) -> str:
    """A paragraph for the section on methods; what runs do not tell is left out."""
    matrix = facts.matrix
    settings = {one.key: one for one in facts.settings}

    def common(key: str) -> str:
        one = settings.get(key)
        return "" if one is None or one.differs else next(iter(one.values.values()))

    seeds = f"{len(matrix.seeds)} seed{'s' * (len(matrix.seeds) != 1)}"
    told = f"We trained {listed(matrix.arms, 20)} on {listed(matrix.tasks, 20)} with {seeds} per arm"
    told += f", from the policy {common('model.name')}" if common("model.name") else ""
    told += f", for {common('train.steps')} updates" if common("train.steps") else ""
    if common("train.prompts") and common("train.group"):
        told += f" of {common('train.prompts')} prompts with {common('train.group')} completions each"
    cited = used_papers(matrix, papers)
    sources = "; ".join(f"{name}: {paper}" for name, paper in cited.items())
    told += f". The algorithms are those of {sources}" if sources else ""
    modes = sorted({decoding(matrix, headline_of(matrix, task).mode) for task in matrix.tasks})
    splits = sorted({headline_of(matrix, task).split for task in matrix.tasks})
    how = f"the {' and '.join(splits)} split by {' and '.join(modes)}"
    told += f". Accuracy is that on {how} after the last update"
    if len(matrix.arms) > 1 and len(matrix.seeds) > 1:
        told += ", mean over seeds with a t interval of 95%; a run that diverged counts as 0. "
        told += "Arms are compared in pairs of equal seeds by an exact two-sided sign-flip permutation test, "
        told += "with Holm's correction over the pairs of a task"
    found = versions(matrix)
    with_them = ", ".join(f"{name} {' and '.join(known)}" for name, known in found.items())
    return told + (f". Software: {with_them}." if with_them else ".")


def bibtex(matrix: Matrix, papers: Mapping[str, str]) -> str:
    """An entry per paper of the algorithms and libraries used. Titles and arXiv numbers are known here,
    authors are not: the entry's address has them."""
    entries: dict[str, str] = {}
    for paper in used_papers(matrix, papers).values():
        for found in CITED.finditer(paper):
            entries.setdefault(found["number"], found["title"].strip())
    for name in versions(matrix):
        if name in LIBRARIES:
            title, number = LIBRARIES[name]
            entries.setdefault(number, title)
    return "\n\n".join(entry(number, title) for number, title in entries.items())


def entry(number: str, title: str) -> str:
    """A BibTeX entry of a preprint; arXiv numbers begin with year and month."""
    return "\n".join(
        [
            f"@misc{{arxiv-{number},",
            f"  title = {{{{{title}}}}},",
            f"  year = {{20{number[:2]}}},",
            f"  eprint = {{{number}}},",
            "  archivePrefix = {arXiv},",
            f"  url = {{https://arxiv.org/abs/{number}}}",
            "}",
        ]
    )
