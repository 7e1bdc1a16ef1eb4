"""`grpobench theory`: what is measured is the algorithms' own code, and formulas do without it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest

from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.grpo import GRPO
from grpobench.analysis.theory.flips import Flips
from grpobench.analysis.theory.predictions import FORMULAS, OF_AN_ALGORITHM, PREDICTIONS, Prediction
from grpobench.analysis.theory.scenarios import SCENARIOS
from grpobench.runs import cli
from grpobench.runs.calibration.batches import Rollouts, ScenarioPolicy
from grpobench.runs.calibration.measure import draw_batch, enumerated_moments, flip
from grpobench.runs.calibration.theory import algorithm_of, moments_of, predictions_of, theory

ROOT = Path(__file__).parents[3]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's class in mine.py, as the current one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(re.findall(r"```python\n(# mine\.py\n.*?)```", text, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_predictions_are_made_without_algorithms_and_without_torch() -> None:
    imported = set()
    for path in (ROOT / "analysis/theory").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    assert not [
        name for name in imported if name.startswith(("grpobench.algorithms", "grpobench.runs", "torch"))
    ]


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("scenario", OF_AN_ALGORITHM)
def test_code_over_all_groups_gives_what_the_formula_says(name: str, scenario: str) -> None:
    """Not a sample: every group, weighed with its chance."""
    algorithm = algorithm_of(name, {})
    (prediction,) = [p for p in predictions_of(name) if p.scenario == scenario] or [None]
    if prediction is None or prediction.formula is None:
        assert name in ("dapo", "gpg") and scenario == "questions"  # they leave groups out
        return
    formula, code = moments_of(algorithm, prediction), enumerated_moments(algorithm, prediction)
    np.testing.assert_allclose(code.mean, formula.mean, rtol=1e-7, atol=1e-10)  # double precision
    assert (code.square, code.advantage) == pytest.approx((formula.square, formula.advantage), rel=1e-7)


def test_the_gradient_of_an_update_is_coefficients_times_scores() -> None:
    toy = SCENARIOS["lengths"]
    rows = np.arange(8) * 7
    rollouts = Rollouts(np.zeros(8, dtype=int), rows, toy.rewards[0, rows], 8)
    update = ScenarioPolicy(toy).update(GRPO(), rollouts)
    tokens = update.coefficient[:, :, None] * toy.score[0, rows].reshape(8, *toy.logits.shape[1:])
    np.testing.assert_allclose(update.gradient, tokens.sum(0).ravel(), atol=1e-12)
    assert np.abs(update.gradient).max() > 0.01


def test_batches_are_drawn_from_the_policy() -> None:
    prediction = Prediction("x", "lengths", "grpo", None, size=4000, copies=1)
    rollouts = draw_batch(GRPO(), prediction, np.random.default_rng(3), (0, 0))
    toy = SCENARIOS["lengths"]
    share = np.bincount(rollouts.row, minlength=len(toy.completions)) / 4000
    expected = toy.probability(toy.logits)[0]
    error = np.sqrt(expected * (1 - expected) / 4000)
    assert (np.abs(share - expected) < 4.5 * error).all()  # 85 shares: 1 in 1,700 draws fails
    assert (rollouts.reward == toy.rewards[0, rollouts.row]).all()


@pytest.mark.parametrize("kind", ["rollout", "group", "answer"])
def test_what_flips_together_flips_together(kind: str) -> None:
    rows = np.tile([0, 1, 1, 0], (3000, 1))
    flipped = flip(np.zeros(rows.shape), rows, Flips(0.25, kind), (1, 2, 3))  # type: ignore[arg-type]
    assert flipped.mean() == pytest.approx(0.25, abs=0.03)  # 4 errors of 3,000 draws
    together = {(0, 1): kind == "group", (0, 3): kind != "rollout", (1, 2): kind != "rollout"}
    for (a, b), equal in together.items():
        assert bool((flipped[:, a] == flipped[:, b]).all()) == equal


def test_dapo_replaces_groups_of_equal_rewards() -> None:
    algorithm = algorithm_of("dapo", {})
    assert not isinstance(algorithm.curriculum([{}], 1, 0), Shuffled)
    prediction = Prediction("x", "answers", "dapo", None, size=2, copies=50)
    reward = draw_batch(algorithm, prediction, np.random.default_rng(0), (0, 0)).reward.reshape(50, 2)
    assert (reward[:, 0] != reward[:, 1]).mean() > 0.9  # .58 of the groups are equal, ten draws each


def test_a_class_from_a_file_is_predicted_by_its_own_code(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["theory", "grpo", "mine:Half", "grpo", "--batches", "60", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["numbers"]
    predicted = {(r["name"], r["scenario"], r["quantity"]): (r["predicted"], r["source"]) for r in rows}
    assert len(predicted) == len(rows) == 32
    for (name, scenario, quantity), (value, source) in predicted.items():
        assert source == {"grpo": "formula", "mine:Half": "code"}[name]
        factor = 4 if quantity == "noise" else 2
        other, _ = predicted["mine:Half", scenario, quantity]
        assert name != "grpo" or value == pytest.approx(factor * other, abs=1e-9)


def test_bias_and_variance_are_printed(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["theory", "mine:Half", "--batches", "40"]) == 0
    out = capsys.readouterr().out
    # half of GRPO's gain of 1.836: a bias of .08
    assert re.search(r"^mine:Half +answers +1 × 8 +code +0\.08 +0\.642 / .* 0\.918 / .* 1\.14 / ", out, re.M)
    assert "of 16 predicted numbers" in out


def test_what_cannot_be_predicted_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["ppo"], "theory ppo: needs the role critic, which an enumerable policy lacks; compare it in runs"),
        (["dpo"], "needs a signal other than advantages"),
        (["gpro"], "unknown algorithm 'gpro'; did you mean grpo"),
        (["grpo", "--keep"], "--keep: the page has every prediction; leave ALGORITHM out"),
    ):
        assert cli.main(["theory", *words]) == 2
        assert message in capsys.readouterr().err


BROKEN = """
import dataclasses
from grpobench.algorithms.grpo import GRPO

@dataclasses.dataclass(frozen=True)
class Short(GRPO):
    name = "short"
    def compute_signal(self, batch, models):
        signal = super().compute_signal(batch, models)
        return dataclasses.replace(signal, advantage=signal.advantage[1:])

@dataclasses.dataclass(frozen=True)
class Raises(GRPO):
    name = "raises"
    def compute_signal(self, batch, models):
        raise KeyError("x")

@dataclasses.dataclass(frozen=True)
class Needs(GRPO):
    name = "needs"
    factor: float = dataclasses.field(kw_only=True)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Short", r"broken\.py:8 Short\.compute_signal returned advantage \(7, 1\), expected \(8, 1\)"),
        ("Raises", r"broken\.py:16 Raises\.compute_signal raised KeyError: 'x'"),
        ("Needs", r"theory broken:Needs: .*'factor'; give its settings defaults"),
    ],
)
def test_faults_of_a_class_name_its_line(
    name: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["theory", f"broken:{name}", "--batches", "2"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_no_prediction_is_wrong() -> None:
    """On fewer batches than the page, of another seed."""
    result = theory(batches=150, seed=5)
    assert len(result.numbers) == 4 * len(PREDICTIONS) and len(result.counted) > 100
    assert not result.wrong
    # of 158 intervals of 95 % chance leaves out 8, and 17 or more once in 500 repetitions
    assert len(result.outside) < 17
