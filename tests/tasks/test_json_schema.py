"""JSON documents: problems, the grader, and completions that try to break it or to earn too much."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import time
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import referencing.exceptions
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.data.tables import DataError
from grpobench.tasks.grading import documents
from grpobench.tasks.json_schema import JSONSchema
from grpobench.tasks.kinds.records import RECORDS, WORDS
from grpobench.tasks.task import Graded, Problem, Verdict

HARD = JSONSchema(fields=(5, 6), nested=True, lists=True, unasked=2, train=60, validation=40, test=40)
EASY = JSONSchema(train=60, validation=40, test=40)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "pieces": {"type": "integer", "minimum": 0},
        "day": {"type": "string", "format": "date"},
        "state": {"enum": ["new", "used"]},
    },
    "required": ["name", "pieces", "day", "state"],
    "additionalProperties": False,
}
DOCUMENT = {"name": "Ada", "pieces": 3, "day": "2024-02-29", "state": "new"}
KINDS = {"name": "text", "pieces": "number", "day": "date", "state": "choice"}
PROBLEM = Problem("p", "", {"schema": json.dumps(SCHEMA), "document": DOCUMENT, "kinds": KINDS})


def grade(text: str) -> Verdict:
    (verdict,) = EASY.verify(PROBLEM, [text])
    return verdict


def scores(text: str) -> tuple[float, ...]:
    """correct, format, valid, fields"""
    return tuple(grade(text).scores[name] for name in JSONSchema.scores)


def changed(**changes: Any) -> str:
    return json.dumps({**DOCUMENT, **changes})


# Problems


@pytest.mark.parametrize("task", [EASY, HARD])
def test_a_schema_is_a_schema_and_the_reference_satisfies_it_by_jsonschema_itself(task: JSONSchema) -> None:
    for problem in task.problems("train"):
        schema = json.loads(problem.truth["schema"])
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(task.demonstrate(problem)), schema)
        jsonschema.validate(json.loads(task.corrupt(problem)), schema)
        assert problem.truth["schema"] in problem.prompt and "$ref" not in problem.prompt
        right, wrong = task.verify(problem, [task.demonstrate(problem), task.corrupt(problem)])
        assert set(right.scores.values()) == {1.0}
        assert (wrong.scores["correct"], wrong.scores["valid"]) == (0, 1) and wrong.scores["fields"] < 1


def test_each_problem_has_a_value_that_cannot_be_copied_from_the_text() -> None:
    for problem in [*EASY.problems("train"), *HARD.problems("train")]:
        text = problem.prompt.partition("\nText: ")[2]
        values = [value for _, value in documents.leaves(problem.truth["document"])]
        copied = [isinstance(value, str) and value in text for value in values]
        assert not all(copied), problem.prompt


def test_dates_times_and_numbers_of_a_problem_say_what_its_text_says() -> None:
    """Read back by other code than that which wrote them."""
    kinds = set()
    for problem in JSONSchema(fields=(6,), train=300).problems("train"):
        text = problem.prompt.partition("\nText: ")[2]
        for key, value in problem.truth["document"].items():
            kind = problem.truth["kinds"][key]
            kinds.add(kind)
            if kind == "date":
                day = datetime.date.fromisoformat(value)
                forms = (f"{day:%B} {day.day}, {day.year}", f"{day.day} {day:%B} {day.year}")
                assert any(form in text for form in forms)
            elif kind == "time":
                moment = datetime.datetime.strptime(value, "%H:%M")
                assert f"{moment:%I:%M} {moment:%p}".lower().lstrip("0") in text
            elif kind == "number":
                assert WORDS[value] in text
            elif kind == "price":
                cents = round(100 * value)
                spoken = f"{cents // 100} dollars" + (f" and {cents % 100} cents" if cents % 100 else "")
                assert f"${cents / 100:.2f}" in text or spoken in text
    assert kinds == {"text", "number", "price", "date", "time", "choice", "boolean"}


def test_settings_change_what_is_asked() -> None:
    for task, low, high in ((EASY, 2, 3), (JSONSchema(fields=(6,), train=50), 6, 6)):
        sizes = {len(p.truth["document"]) for p in task.problems("train")}
        assert sizes == set(range(low, high + 1)) or sizes == {high}
    for problem in HARD.problems("train"):
        record = RECORDS[str(problem.traits["category"])]
        group = problem.truth["document"][record.group]
        assert set(group) == set(record.inside)
        text = problem.prompt.partition("\nText: ")[2]
        num_values = len(problem.truth["kinds"])
        assert num_values in (5, 6) and len([s for s in text.split(". ") if s]) >= num_values + 1
    lists = [p for p in HARD.problems("train") if "list" in p.truth["kinds"].values()]
    assert lists and not any("list" in p.truth["kinds"].values() for p in EASY.problems("train"))
    assert "unknown" in JSONSchema(template="nope").missing() and EASY.missing() == ""
    with pytest.raises(DataError, match="nope"):
        JSONSchema(template="nope").problems("train")


# The grader


def test_scores_by_hand() -> None:
    assert scores(json.dumps(DOCUMENT)) == (1, 1, 1, 1)
    assert scores(changed(pieces=4)) == (0, 1, 1, 3 / 4)
    assert scores(changed(state="old")) == (0, 1, 0, 3 / 4)  # not among the choices
    assert scores(changed(day="2023-02-29")) == (0, 1, 0, 3 / 4)  # no such day
    assert scores(changed(pieces="3")) == (0, 1, 0, 3 / 4)
    assert scores(changed(pieces=True)) == (0, 1, 0, 3 / 4)
    assert scores(changed(more=1)) == (0, 1, 0, 4 / 5)  # right values, and one that nobody asked for
    assert scores('{"name": "Ada"}') == (0, 1, 0, 1 / 4)
    assert scores("{}") == (0, 1, 0, 0 / 5)
    assert scores("no document") == (0, 0, 0, 0)
    assert grade("no document").outcome == "unparsable" and grade("no document").answer is None


@pytest.mark.parametrize(
    "text",
    [
        "```json\n{}\n```",
        "Here it is: {} I hope that helps {{really}}.",
        'First {{"name": "Ben"}}, no: {}',
        '<think>{{"name": 1}}</think>\n{}',
        "a brace {{ alone, then {}",
    ],
)
def test_the_last_object_counts_whatever_is_around_it(text: str) -> None:
    assert scores(text.format(json.dumps(DOCUMENT, indent=1))) == (1, 1, 1, 1)


def test_a_whole_number_may_be_written_in_any_way_and_no_other_value() -> None:
    for spelled in ("3", "3.0", "3e0", "0.3e1"):
        assert scores(json.dumps(DOCUMENT).replace(": 3", f": {spelled}"))[0] == 1, spelled
    for spelled in ("03", "+3", "3.", "'3'", "three", "0x3", "3_0", "3.0000001"):
        assert scores(json.dumps(DOCUMENT).replace(": 3", f": {spelled}"))[0] == 0, spelled


def test_answers_compare_by_value_for_votes() -> None:
    shuffled = dict(sorted(DOCUMENT.items(), reverse=True))
    assert grade(json.dumps(shuffled)).answer == grade(f"```\n{json.dumps(DOCUMENT)}\n```").answer


HOSTILE = {
    "a key twice": '{"name": "Ben", "name": "Ada", "pieces": 3, "day": "2024-02-29", "state": "new"}',
    "NaN": changed().replace(": 3", ": NaN"),
    "infinity": changed().replace(": 3", ": -Infinity"),
    "a number beyond floats": changed().replace(": 3", ": 1e999"),
    "a number of 5,000 digits": changed().replace(": 3", f": {'3' * 5000}"),
    "an exponent of 30 digits": changed().replace(": 3", f": 1e{'9' * 30}"),
    "half a surrogate pair": changed(name="\ud800"),
    "the other half as it is": '{"name": "\udc00"}',
    "NUL": '{"name": "\0"}',
    "a reference": '{"$ref": "http://localhost:9/schema", "$schema": "http://localhost:9/x"}',
    "deep objects": '{"a":' * 9000 + "1" + "}" * 9000,
    "deep lists": '{"a":' + "[" * 9000 + "]" * 9000 + "}",
    "open braces": "{" * 100_000,
    "open strings": '{"' * 50_000,
    "escapes": '{"\\"' * 50_000,
    "open objects": '{"a":' * 50_000,
    "empty objects": "{}" * 100_000,
    "many keys": json.dumps({str(i): i for i in range(2000)}),
    "an object that breaks off": '{"outer": ' + changed() + ", ",
    "an object that breaks off in a text": changed()[:-4],
    "an object in a list": "[" + '{"outer": ' + changed() + "}]",
    "a long list": json.dumps({"name": [0] * 5000}),
    "quotes": '"' * 100_000,
    "backslashes": '{"' + "\\" * 100_000,
    "thoughts": "<think>" * 20_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_completions_are_wrong_and_cheap(case: str) -> None:
    began = time.process_time()
    verdict = grade(HOSTILE[case])
    assert time.process_time() - began < 1.5, "the slowest takes about .2 s"
    assert verdict.scores["correct"] == 0 and verdict.outcome in ("graded", "unparsable")
    assert verdict.scores["fields"] < 1
    if verdict.answer is not None:
        verdict.answer.encode("utf-8")  # as a log does


PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"', "\\", ":", ",", '"name"', '"Ada"', "3", "NaN", "1e9", "true", " ", "```", "\n"]
)


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=80))
def test_the_verifier_is_total(text: str) -> None:
    verdict = grade(text)
    assert set(verdict.scores) == set(JSONSchema.scores)
    assert all(0 <= score <= 1 for score in verdict.scores.values())
    assert (verdict.outcome == "unparsable") == (verdict.answer is None) == (verdict.scores["format"] == 0)


SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*DOCUMENT, "more"]), VALUES, max_size=5))
def test_scores_are_those_of_jsonschema_and_of_equality(document: Mapping[str, Any]) -> None:
    """`valid` as the library says without our reader; `correct` only for the one right document."""
    text = json.dumps(document)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    is_valid = jsonschema.Draft202012Validator(SCHEMA, format_checker=checker).is_valid(json.loads(text))
    _, form, valid, fields = scores(f"the answer:\n{text}\n")
    assert (form, valid) == (1, is_valid)
    equal = document == DOCUMENT and type(document["pieces"]) is not bool
    assert (fields == 1) == equal == bool(scores(text)[0])


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.text(alphabet="ab \n'`#", max_size=20))
def test_a_document_is_found_as_json_reads_it(document: Mapping[str, Any], prose: str) -> None:
    assert documents.find(f"{prose}{json.dumps(document)}{prose}") == document


def test_a_reference_to_another_document_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network was asked"))
    remote = documents.validator('{"$ref": "http://localhost:9/schema.json"}')
    with pytest.raises(referencing.exceptions.Unresolvable):
        remote.is_valid({})


def test_documents_nest_as_deeply_as_stated_and_no_deeper() -> None:
    for depth, accepted in ((documents.DEEPEST, True), (documents.DEEPEST + 1, False)):
        text = '{"a":' * depth + "1" + "}" * depth
        assert (documents.find(text) == json.loads(text)) == accepted


# Metrics


def test_summary_by_hand() -> None:
    texts = [changed(), changed(pieces=9), changed(day="2024-03-01", state="used"), "nothing"]
    rows = [Graded(PROBLEM, grade(text)) for text in texts]
    expected = {"fields/text": 3 / 4, "fields/number": 2 / 4, "fields/date": 2 / 4, "fields/choice": 2 / 4}
    assert EASY.summarize(rows) == expected
    lost = dataclasses.replace(rows[0], verdict=Verdict({}, None, "infra_error"))
    assert EASY.summarize([*rows, lost]) == expected


def test_budget_holds_the_longest_document() -> None:
    """In characters over two, since a token of a real tokenizer is rarely shorter in such a document."""
    rng = random.Random(0)
    for task in (EASY, HARD, JSONSchema(fields=(6,), lists=True, train=200)):
        for problem in rng.sample(task.problems("train"), 60):
            assert len(task.demonstrate(problem)) / 2 < task.max_completion_tokens
