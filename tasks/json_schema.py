"""Write a JSON document that follows a schema and gives the facts of a short text; generated from a seed."""

from __future__ import annotations

import datetime
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from grpobench.tasks.data.tables import Source
from grpobench.tasks.grading import documents
from grpobench.tasks.grading.documents import KeyPath
from grpobench.tasks.kinds.generated import Generated, distinct
from grpobench.tasks.kinds.records import COPIED, RECORDS, RecordFact
from grpobench.tasks.prompts.templates import Template, template, template_fault
from grpobench.tasks.task import Graded, Problem, Split, Task, Verdict, identity

MOST_FIELDS = 6
BUDGET, FIELD_TOKENS = 24, 20
"""Tokens of a completion, and for each field, twice what the longest document takes in SmolLM2's tokens."""


@dataclass(frozen=True)
class JSONSchema(Generated, Task):
    """A text of a few sentences and a schema; the completion is a JSON object with the facts of the text.

    At least one value of each problem cannot be copied from the text (see `kinds/records.py`). A completion
    without a JSON object is unparsable. `valid`: the object satisfies the schema. `fields`: the share of
    right values among all that are asked for or given. `correct`: all are right, and the object is valid.
    `category` is the kind of record, `difficulty` the number of values.
    """

    name = "json_schema"
    source = "generated from a seed by grpobench.tasks.json_schema (Apache-2.0)"
    summary = "a JSON document with the facts of a text, graded by a schema and value by value"
    scores = ("correct", "format", "valid", "fields")
    fields: tuple[int, ...] = (2, 3)
    """Allowed numbers of fields, each equally frequent."""
    nested: bool = False
    """Whether two of the fields are asked for in an object of their own."""
    lists: bool = False
    """Whether one of the fields may be a list."""
    unasked: int = 0
    """How many more facts the text has, for which the schema has no field."""
    template: str = "json_schema"
    """Prompt template: a packaged one, or a path ending in .txt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lowest = 3 if self.nested else 2
        if not self.fields or not all(lowest <= count <= MOST_FIELDS for count in self.fields):
            raise ValueError(f"fields: each must be from {lowest} to {MOST_FIELDS}")
        if not 0 <= self.unasked <= 2:
            raise ValueError("unasked: must be from 0 to 2")

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """Enough for a document of the most fields."""
        return BUDGET + FIELD_TOKENS * max(self.fields)

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self, split, template(self.template))

    def sources(self, split: Split) -> tuple[Source, ...]:
        return (template(self.template).source,)

    def missing(self) -> str:
        """An invalid template."""
        return template_fault(self.template)

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        expected = dict(documents.leaves(problem.truth["document"]))
        return [grade(problem.truth["schema"], expected, completion) for completion in completions]

    def demonstrate(self, problem: Problem) -> str:
        return json.dumps(problem.truth["document"])

    def corrupt(self, problem: Problem) -> str:
        """The reference with another value for the first field whose value cannot be copied; it is valid."""
        schema = json.loads(problem.truth["schema"])
        path = next(keys.split(".") for keys, kind in problem.truth["kinds"].items() if kind not in COPIED)
        return json.dumps(replaced(problem.truth["document"], path, schema))

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        """A document with one value for everything."""
        try:
            value = json.loads(answer)
        except ValueError:
            value = answer
        return (json.dumps(filled(problem.truth["document"], value)),)

    def right_besides(self, problem: Problem, episode: Sequence[str]) -> bool:
        """Whether the whole episode is the reference document in other words of JSON."""
        try:
            return bool(json.loads(episode[-1]) == problem.truth["document"])
        except (ValueError, RecursionError):
            return False

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """``fields/<kind>``: share of right values by kind, such as `date`; the values of completions without
        a document are wrong. Rows with outcome `infra_error` are left out."""
        rows: defaultdict[str, list[bool]] = defaultdict(list)
        for row in graded:
            if row.verdict.outcome == "infra_error":
                continue
            answer_values = dict(documents.leaves(json.loads(row.verdict.answer or "null")))
            truth = row.problem.truth
            for path, value in documents.leaves(truth["document"]):
                kind = truth["kinds"][dotted(path)]
                rows[kind].append(path in answer_values and documents.same(answer_values[path], value))
        return {f"fields/{kind}": sum(grades) / len(grades) for kind, grades in sorted(rows.items())}


def grade(schema: str, expected: Mapping[KeyPath, Any], completion: str) -> Verdict:
    """The grade of one completion, given the schema and the right values by their paths."""
    document = documents.find(completion)
    if document is None:
        return Verdict(dict.fromkeys(JSONSchema.scores, 0.0), None, "unparsable")
    valid = bool(documents.validator(schema).is_valid(document))
    right = documents.share_right(document, expected)
    scores = {"correct": float(valid and right == 1), "format": 1.0, "valid": float(valid), "fields": right}
    return Verdict(scores, documents.canonical(document))


def dotted(path: KeyPath) -> str:
    """The keys of a path without the indices of lists, such as ``customer.name``."""
    return ".".join(key for key in path if isinstance(key, str))


def filled(document: Any, value: Any) -> Any:
    """A document of the same shape with one value everywhere."""
    if isinstance(document, dict):
        return {key: filled(member, value) for key, member in document.items()}
    return [value] * len(document) if isinstance(document, list) else value


def replaced(document: Mapping[str, Any], path: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document with another valid value at a path."""
    key, subpath = path[0], path[1:]
    rule, value = schema["properties"][key], document[key]
    return {**document, key: replaced(value, subpath, rule) if subpath else other(value, rule)}


def other(value: Any, rule: Mapping[str, Any]) -> Any:
    """Another value that a rule of a schema allows."""
    if "enum" in rule:
        options = rule["enum"]
        return options[(options.index(value) + 1) % len(options)]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if rule.get("format") == "date":
        return (datetime.date.fromisoformat(value) + datetime.timedelta(1)).isoformat()
    return f"{(int(value[:2]) + 1) % 24:02}{value[2:]}"


# Generating


@cache
def _problems(task: JSONSchema, split: Split, chosen: Template) -> tuple[Problem, ...]:
    return distinct(task, split, lambda rng: _draw(task, chosen, rng))


def _draw(task: JSONSchema, chosen: Template, rng: random.Random) -> Problem:
    kind = rng.choice([*RECORDS])
    facts = _facts(task, kind, rng)
    asked_facts = facts[: len(facts) - task.unasked]
    sentences = [fact.sentence for fact in rng.sample(facts, len(facts))]
    group = RECORDS[kind].group if task.nested else ""
    inside = RECORDS[kind].inside if task.nested else ()
    schema = json.dumps(_schema(asked_facts, group, inside))
    question = f"JSON schema: {schema}\nText: {' '.join(sentences)}"
    truth = {
        "schema": schema,
        "document": _document(asked_facts, group, inside),
        "kinds": {f"{group}.{f.key}" if f.key in inside else f.key: f.kind for f in asked_facts},
    }
    values = sum(1 for _ in documents.leaves(truth["document"]))
    traits: dict[str, str | float] = {"category": kind, "difficulty": float(values)}
    return Problem(identity(question), chosen.prompt(question), truth, traits)


def _facts(task: JSONSchema, kind: str, rng: random.Random) -> list[RecordFact]:
    """The facts that are asked for, with at least one whose value cannot be copied, then the others."""
    record = RECORDS[kind]
    fields = [field for field in record.fields if task.lists or field.kind != "list"]
    inside = [field for field in fields if task.nested and field.key in record.inside]
    candidates = [field for field in fields if field not in inside]
    inferred = rng.choice([field for field in candidates if field.kind not in COPIED])
    candidates.remove(inferred)
    more = rng.sample(candidates, rng.choice(task.fields) - 1 - len(inside) + task.unasked)
    asked_fields = [*inside, inferred, *more]
    unasked = [asked_fields.pop() for _ in range(task.unasked)]
    rng.shuffle(asked_fields)
    return [field.fact(rng) for field in [*asked_fields, *unasked]]


def _schema(facts: Sequence[RecordFact], group: str, inside: Sequence[str]) -> dict[str, Any]:
    """The schema of the facts, those `inside` as an object called `group`."""
    properties: dict[str, Any] = {}
    for fact in facts:
        if fact.key in inside:
            within = [member for member in facts if member.key in inside]
            properties.setdefault(group, _schema(within, "", ()))
        else:
            properties[fact.key] = dict(fact.schema)
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _document(facts: Sequence[RecordFact], group: str, inside: Sequence[str]) -> dict[str, Any]:
    """The facts as a document of that schema."""
    document: dict[str, Any] = {}
    for fact in facts:
        holder = document.setdefault(group, {}) if fact.key in inside else document
        holder[fact.key] = fact.value
    return document
