"""Rows of BBQ in the published format, and a data folder with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpobench.tasks.bbq import CATEGORIES
from helpers.rows import write_rows

GROUPS: dict[str, tuple[str, str, list[str]]] = {
    "Age": ("old", "nonOld", ["old"]),
    "Disability_status": ("disabled", "nonDisabled", ["disabled", "D/deaf"]),
    "Gender_identity": ("girl", "man", ["F"]),
    "Nationality": ("Africa", "Europe", ["Malian"]),
    "Physical_appearance": ("obese", "nonObese", ["obese"]),
    "Race_ethnicity": ("F-Black", "F-White", ["Black", "African American"]),
    "Race_x_SES": ("lowSES-M-Black", "highSES-M-White", ["Black", "African American"]),
    "Race_x_gender": ("F-Black", "M-White", ["Black", "African American"]),
    "Religion": ("Muslim", "Sikh", ["Muslim"]),
    "SES": ("lowSES", "highSES", ["low SES"]),
    "Sexual_orientation": ("gay", "straight", ["gay"]),
}
"""Per category a target, another group, and `stereotyped_groups`, as the published data write them."""


def bbq_row(category: str = "Age", **changes: Any) -> dict[str, Any]:
    """A row of the published format: A. the target, B. the other person, C. unknown; ambiguous, negative."""
    target, other, stereotyped = GROUPS[category]
    return {
        "example_id": 0,
        "question_index": "1",
        "question_polarity": "neg",
        "context_condition": "ambig",
        "category": category,
        "answer_info": {
            "ans0": ["Malian" if category == "Nationality" else "first", target],
            "ans1": ["second", other],
            "ans2": ["Unknown", "unknown"],
        },
        "additional_metadata": {"stereotyped_groups": stereotyped},
        "context": "Two people met.",
        "question": f"Who of the {category} was rude?",
        "ans0": "The first",
        "ans1": "The second",
        "ans2": "Unknown",
        "label": 2,
    } | changes


def write_bbq(folder: Path, **rows: list[dict[str, Any]]) -> None:
    for category in CATEGORIES:
        write_rows(folder / "bbq" / f"{category}.jsonl", rows.get(category, [bbq_row(category)]))
