"""Presets of other libraries: what they set, where recipes take them, and what they do to advantages."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, reading, rollouts

from grpobench.algorithms import ALGORITHMS, parts
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.libraries.dialect import SETTINGS
from grpobench.algorithms.libraries.dialects import DIALECTS, MEANINGS, SELF_TEACHERS, TABLES, TURN_CREDITS
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.ppo import PPO
from grpobench.analysis.runfolder.load import identify_run
from grpobench.runs import cli
from grpobench.runs.inventory import showing
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.settings.stored import dump, load
from grpobench.runs.tools.strict import ConfigError

BARE = 'tasks = ["arithmetic"]\n'


def recipe(folder: Path, text: str, *sets: str) -> Recipe:
    path = folder / "r.toml"
    path.write_text(BARE + text, encoding="utf-8")
    return read_recipe(str(path), sets)


def config(folder: Path, name: str) -> RunConfig:
    """The run of an arm of this algorithm or dialect, of which the recipe says nothing."""
    text = f'[[arm]]\nalgorithm = "{name}"\n'
    return recipe(folder, text, 'model.teacher="nano"').runs()[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunConfig]:
    """The run of an arm of each dialect, of which the recipe says nothing."""
    arms = "".join(f'[[arm]]\nalgorithm = "{name}"\n' for name in DIALECTS)
    read = recipe(tmp_path_factory.mktemp("dialects"), arms, 'model.teacher="nano"').runs()
    return {run.arm: run for run in read}


# Every dialect


@pytest.mark.parametrize("name", DIALECTS)
def test_a_recipe_gives_every_value_of_a_dialect_and_records_its_name(
    name: str, runs: dict[str, RunConfig]
) -> None:
    dialect, run = DIALECTS[name], runs[name]
    assert {dialect.algorithm, dialect.base} <= ALGORITHMS.keys()
    assert len({fact.setting for fact in dialect.facts}) == len(dialect.facts)
    assert all(entry.source for entry in (*dialect.facts, *dialect.gaps))
    assert dialect.remark or not dialect.on, "a dialect of another algorithm of ours says why"
    assert dialect.values.keys() <= {SETTINGS, "modify", "sampler", "train"}
    assert run.algorithm.name == dialect.base
    for section, values in dialect.values.items():
        part = run.algorithm if section == SETTINGS else getattr(run, section)
        for field, value in values.items():
            assert getattr(part, field) == value, (section, field)
    assert run.dialect == f"{dialect.name}, {dialect.version}"
    written = tomllib.loads(dump(run))
    assert written["algorithm"]["name"] == dialect.base
    assert written["algorithm"]["dialect"] == run.dialect
    assert load(dump(run)) == run


# The advantages of eight completions, the first of which is correct


def advantages(run: RunConfig) -> list[float]:
    """Of each completion's first token; the reference agrees with the policy."""
    batch = rollouts([[3] * 8], [[1.0] + [0.0] * 7])
    models = Fixed(reference=reading(batch.old_logp), policy=reading(batch.old_logp))
    advantage: torch.Tensor = run.algorithm.compute_signal(batch, models).advantage
    assert torch.equal(advantage[:, 0], advantage[:, 2])
    return advantage[:, 0].tolist()


DEVIATION = math.sqrt((7 / 8**2 + 49 / 8**2) / 7)  # of 1, 0, …, 0 with Bessel's correction: 0.354
OTHERS = math.sqrt((6 * (1 / 7) ** 2 + (6 / 7) ** 2) / 6)  # of a wrong completion's others: 0.378
ADVANTAGES = {
    (7 / 8 / DEVIATION, -1 / 8 / DEVIATION): """
        grpo@trl grpo@verl grpo@openrlhf grpo@skyrl grpo@slime grpo@ms-swift dapo@nemo-rl dapo@trl dr_grpo@trl
        cispo@verl gspo@verl dro@verl fipo@ms-swift chord@trinity-rft m2po@areal
    """,
    # the others of the correct one do not differ
    (1.0, -1 / 7 / OTHERS): "grpo@nemo-rl gspo@nemo-rl",
    (7 / 8, -1 / 8): "grpo@open-instruct grpo@prime-rl dppo@prime-rl dr_grpo@verl dr_grpo@openrlhf",
    (1.0, -1 / 7): "rloo@skyrl rloo@trl rloo@verl rloo@openrlhf",
    # whitened: squares average to 1
    (math.sqrt(7), -1 / math.sqrt(7)): """
        dapo@areal grpo@areal reinforce_pp@verl reinforce_pp_baseline@openrlhf
    """,
    (1 / 2, -1 / 2): "topr@roll",
    (1.0, 0.0): "topr@trinity-rft",
}


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [(name, *advantage) for advantage, names in ADVANTAGES.items() for name in names.split()],
)
def test_advantages_of_one_correct_completion_in_eight(
    name: str, right: float, wrong: float, runs: dict[str, RunConfig]
) -> None:
    # 3e-4: TRL adds 1e-4 to a deviation of 0.354, the others less
    assert advantages(runs[name]) == pytest.approx([right, *[wrong] * 7], rel=3e-4)


# The distillation of verl 0.9.1


def clipped_loss_of_verl(
    advantage: torch.Tensor, logp: torch.Tensor, old: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """verl 0.9.1, verl/trainer/ppo/core_algos.py: compute_policy_loss_vanilla with a dual clip of 3, which is
    the loss of the task and, in verl/trainer/distillation/losses.py with k1 and use_policy_gradient, that of
    log π_teacher − log π."""
    ratio = (logp - old).clamp(-20, 20).exp()
    losses = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    losses = torch.where(advantage < 0, torch.minimum(-advantage * 3.0, losses), losses)
    return (losses * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("spread", "reward"), [(0.0, [1.0, 0.0, 0.0, 0.0]), (0.1, [1.0] * 4), (1.5, [1.0] * 4)]
)
def test_opd_of_verl_is_its_k1_under_the_clip_and_the_dual_clip(
    spread: float, reward: list[float], tmp_path: Path
) -> None:
    """With a task's advantage in the first update; beyond it of equal rewards, which leave the teacher alone,
    at ratios within the clip and beyond the dual clip."""
    algorithm = config(tmp_path, "opd@verl").algorithm
    generator = torch.Generator().manual_seed(1)
    batch = rollouts([[5, 2, 7, 4]], [reward])
    old, teacher, moved = (torch.randn(batch.old_logp.shape, generator=generator) for _ in range(3))
    batch = dataclasses.replace(batch, old_logp=old)
    logp = (old + spread * moved).requires_grad_()
    models = Fixed(teacher=reading(teacher), reference=reading(old), policy=reading(old))
    signal = algorithm.compute_signal(batch, models)
    terms = algorithm.loss(batch, signal, {"policy": reading(logp)}).terms
    value = (terms * algorithm.loss_weights(batch)).sum()
    task = ((batch.reward - batch.reward.mean()) / (batch.reward.std() + 1e-6))[:, None]
    expected = sum(
        clipped_loss_of_verl(advantage, logp, old, batch.completion_mask)
        for advantage in (task, teacher - old)
    )
    torch.testing.assert_close(value, expected)
    gradients = [torch.autograd.grad(loss, logp, retain_graph=True)[0] for loss in (value, expected)]
    torch.testing.assert_close(*gradients)
    far = ((logp - old).exp() > 3) & (teacher < old) & batch.completion_mask
    assert bool(far.any()) == (spread > 1)


# Options that dialects needed


def test_deviation_of_the_others_by_hand() -> None:
    value = torch.tensor([0.0, 1.0, 3.0, 5.0, 5.0, 9.0])
    group = torch.tensor([0, 0, 0, 1, 1, 2])
    # of {1, 3}, {0, 3}, {0, 1} with ddof 1; of one other row and of none there is no deviation
    expected = torch.tensor([math.sqrt(2), math.sqrt(4.5), math.sqrt(0.5), 0.0, 0.0, 0.0])
    torch.testing.assert_close(parts.others_std(value, group, 1), expected)
    torch.testing.assert_close(
        parts.others_std(value, group, 0), torch.tensor([1.0, 1.5, 0.5, 0.0, 0.0, 0.0])
    )


def test_others_that_are_all_equal_divide_nothing_however_they_round() -> None:
    reward = torch.tensor([0.3] + [0.1] * 7)  # a mean of seven 0.1 is not 0.1 in float32
    group = torch.zeros(8, dtype=torch.long)
    assert parts.others_std(reward, group, 1)[0] == 0
    advantage = parts.group_advantage(reward, group, "leave_one_out", "leave_one_out", 1, 1e-6)
    assert advantage[0].item() == pytest.approx(0.2)


def test_kl_in_the_advantage_is_summed_from_each_token_to_the_end() -> None:
    batch = rollouts([[3, 2]], [[1.0, 0.0]], gaps={0: (1,)})
    reference = torch.tensor([[-0.1, -9.0, -0.3], [-0.5, -0.25, -9.0]])  # old_logp is 0
    models = Fixed(reference=reading(reference))
    plain = GRPO(scale="none").compute_signal(batch, models).advantage
    advantage = GRPO(scale="none", beta=2.0, kl_placement="advantage").compute_signal(batch, models).advantage
    taken = 2 * torch.tensor([[0.4, 0.0, 0.3], [0.75, 0.25, 0.0]])  # the gap and the padding count nowhere
    torch.testing.assert_close(advantage, plain - taken)


def test_whitening_follows_the_group_and_the_kl() -> None:
    batch = rollouts([[3, 1], [2, 2]], [[1.0, 0.0], [0.5, 0.0]])
    models = Fixed(reference=reading(torch.full_like(batch.old_logp, -0.1)))
    settings: dict[str, Any] = {"scale": "none", "beta": 1.0, "kl_placement": "advantage"}
    plain = GRPO(**settings).compute_signal(batch, models).advantage
    advantage = GRPO(**settings, whiten=True).compute_signal(batch, models).advantage
    inside = plain[batch.completion_mask]
    assert inside.mean().abs() > 0.01  # or whitening would only scale
    torch.testing.assert_close(
        advantage[batch.completion_mask],
        (inside - inside.mean()) / inside.std(correction=0),
        rtol=1e-5,
        atol=1e-6,
    )


# Recipes


def test_a_dialect_lies_under_everything_that_the_recipe_says(tmp_path: Path) -> None:
    text = '[train]\nnum_minibatches = 2\n[sampler]\ntemperature = 0.7\n[[arm]]\nalgorithm = "grpo@verl"\n'
    plain = recipe(tmp_path, text).runs()[0]
    assert (plain.train.num_minibatches, plain.sampler.temperature) == (2, 0.7)
    assert (plain.algorithm.dual_clip, plain.algorithm.averaging) == (3.0, "token_mean")
    overridden = recipe(tmp_path, text + "train.num_minibatches = 8\nsettings.dual_clip = 5.0\n").runs()[0]
    assert (overridden.train.num_minibatches, overridden.algorithm.dual_clip) == (8, 5.0)
    from_command_line = recipe(
        tmp_path, text, "arm.grpo@verl.settings.dual_clip=0", "algorithm.epsilon=0.5"
    ).runs()[0]
    assert (from_command_line.algorithm.dual_clip, from_command_line.algorithm.epsilon) == (0.0, 0.5)


def test_a_dialect_takes_the_place_of_what_an_algorithm_modifies(tmp_path: Path) -> None:
    assert config(tmp_path, "dapo").modify.dynamic_sampling == 9
    assert config(tmp_path, "dapo@trl").modify.dynamic_sampling == 0


def test_dialects_are_chosen_beside_algorithms_and_keep_their_spelling(tmp_path: Path) -> None:
    runs = recipe(tmp_path, '[[arm]]\nalgorithm = "grpo"\n', "arms=grpo@trl,grpo,grpo@verl").runs()
    assert [run.folder for run in runs] == [
        "grpo@trl-arithmetic-s0",
        "grpo-arithmetic-s0",
        "grpo@verl-arithmetic-s0",
    ]
    assert [run.dialect.partition(",")[0] for run in runs] == ["grpo@trl", "", "grpo@verl"]
    renamed = recipe(tmp_path, '[[arm]]\nalgorithm = "grpo@trl"\nname = "theirs@2x"\n').runs()[0]
    assert renamed.folder == "theirs@2x-arithmetic-s0"


def test_run_folders_of_dialects_are_told_apart_without_run_toml(tmp_path: Path) -> None:
    identity = identify_run(
        tmp_path / "grpo@trl-arithmetic-s3", {}, {"arms": ["grpo@trl"], "tasks": ["arithmetic"]}
    )
    assert identity == ("grpo@trl", "arithmetic", 3)


def test_a_run_without_a_dialect_is_written_as_before(tmp_path: Path) -> None:
    run = config(tmp_path, "grpo")
    assert run.dialect == ""
    assert "dialect" not in tomllib.loads(dump(run))["algorithm"]
    assert load(dump(run)) == run


@pytest.mark.parametrize(
    ("text", "sets", "fault"),
    [
        (
            '[[arm]]\nalgorithm = "grpo@tlr"\n',
            (),
            "arm[0].algorithm: unknown dialect 'grpo@tlr'; did you mean grpo@trl?",
        ),
        (
            '[[arm]]\nalgorithm = "zzz@qqq"\n',
            (),
            "arm[0].algorithm: unknown dialect 'zzz@qqq'; `grpobench list dialects` shows the known ones",
        ),
        (
            '[[arm]]\nalgorithm = "grpo"\n',
            ("arms=gspo@tlr",),
            "--set arms: unknown dialect 'gspo@tlr'; did you mean gspo@trl?",
        ),
        (
            '[[arm]]\nalgorithm = "grpo"\nname = "a b"\n',
            (),
            "arm[0].name: must be letters, digits, -, _, ., + and @, not the string 'a b'",
        ),
    ],
)
def test_unknown_dialects_name_the_nearest(
    text: str, sets: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text, *sets)
    assert fault in caught.value.faults


# The command line


def test_the_differences_of_a_dialect_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "algorithm", "grpo", "--as", "nemo-rl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("grpo@nemo-rl: nemo-rl commits ")
    table = [line.split() for line in lines[: lines.index("the same:")]]
    assert ["setting", "ours", "theirs", "read", "in"] in table
    assert any(cells[:3] == ["baseline", "mean", "leave_one_out"] for cells in table)
    assert not any(cells[:1] == ["ddof"] for cells in table)  # equal, so not in the table
    assert "not expressed:" in lines


def test_dialects_as_json_hold_every_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "dialects", "--json"]) == 0
    shown = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert shown.keys() == DIALECTS.keys()
    for name, dialect in DIALECTS.items():
        row = shown[name]
        fact_by_setting = {fact["setting"]: fact for fact in (*row["differences"], *row["equal"])}
        assert fact_by_setting.keys() == {fact.setting for fact in dialect.facts}
        assert all(fact_by_setting[fact.setting]["source"] == fact.source for fact in dialect.facts)
        assert [gap["what"] for gap in row["not_expressed"]] == [gap.what for gap in dialect.gaps]
    assert cli.main(["show", "algorithm", "grpo", "--as", "trl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown["grpo@trl"]


def test_a_setting_that_ours_lacks_is_told_from_one_that_is_equal() -> None:
    row = showing.show_as("dr_grpo", "trl")
    assert {"setting": "scale", "ours": showing.ABSENT, "theirs": "group"}.items() <= next(
        fact for fact in row["differences"] if fact["setting"] == "scale"
    ).items()
    assert "averaging" in {fact["setting"] for fact in row["equal"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "algorithm", "grpo", "--as", "tlr"), "no dialect grpo@tlr; did you mean trl?"),
        (("show", "dialect", "grpo@vrl"), "unknown dialect 'grpo@vrl'; did you mean grpo@verl?"),
        (("show", "algorithm"), "show algorithm: needs a name"),
        (("show", "dialects", "grpo"), "show dialects: takes no name"),
        (("show", "task", "arithmetic", "--as", "trl"), "write grpobench show algorithm NAME --as trl"),
    ],
)
def test_wrong_words_give_exit_2_and_the_remedy(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_every_dialect_is_listed_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "dialects"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(DIALECTS)
    assert any(line.split()[:3] == ["grpo@trl", "trl", "1.16.0:"] for line in lines)


# What is said of TRL, against the TRL that is installed


def test_defaults_of_trl_are_those_of_the_installed_release() -> None:
    trl = pytest.importorskip("trl")
    if not trl.__version__.startswith("1.16"):
        pytest.skip("the facts are those of 1.16")
    group = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    options = {
        "scale": "scale_rewards",
        "clip_low": "epsilon",
        "beta": "beta",
        "sampler.temperature": "temperature",
        "train.epochs": "num_iterations",
        "modify.mask_truncated": "mask_truncated_completions",
        "temperature_positive": "sapo_temperature_pos",
        "temperature_negative": "sapo_temperature_neg",
        "power_positive": "vespo_k_pos",
        "decay_positive": "vespo_lambda_pos",
        "power_negative": "vespo_k_neg",
        "decay_negative": "vespo_lambda_neg",
    }
    requested = {"lite_ppo": {"scale": "batch"}, "gmpo": {"clip_low": 0.4}, "rloo": {"beta": 0.05}}
    checked = set()
    for dialect in DIALECTS.values():
        if dialect.library == "trl" and "GRPO" in dialect.ask:
            for fact in dialect.facts:
                option = options.get(fact.setting)
                if option:
                    expected = requested.get(dialect.algorithm, {}).get(fact.setting, group[option])
                    assert fact.value == expected, (dialect.name, fact.setting)
                    checked.add(fact.setting)
    assert checked == options.keys()
    assert (group["loss_type"], group["importance_sampling_level"]) == ("dapo", "token")
    assert group["epsilon_high"] is group["delta"] is group["steps_per_generation"] is None
    assert group["use_bias_correction_kl"] is True
    rloo = {field.name: field.default for field in dataclasses.fields(trl.RLOOConfig)}
    assert (rloo["beta"], rloo["epsilon"], rloo["normalize_advantages"]) == (0.05, 0.2, False)
    assert {f.name: f.default for f in dataclasses.fields(trl.DPOConfig)}["beta"] == 0.1


def test_settings_that_say_how_a_library_credits_turns_exist() -> None:
    for credit in TURN_CREDITS:
        sections = tomllib.loads("\n".join(credit.ours))
        Modifiers(**sections.get("modify", {}))
        settings = sections.get("settings", {})
        (PPO if "gae" in settings else GRPO)(**settings)
        assert settings.get("averaging", "token_mean") in parts.Averaging.__args__
    assert {"TRL", "verl", "verl-agent", "SkyRL", "prime-rl"} <= {
        credit.library.partition(",")[0] for credit in TURN_CREDITS
    }


@pytest.mark.parametrize("kind", ["facts", "gaps"])
def test_every_list_of_facts_or_gaps_is_shared(kind: str) -> None:
    lists = [*TABLES[kind].values(), *(table.get(kind, []) for table in TABLES["dialect"])]
    uses = Counter(entry for entries in lists for entry in entries if isinstance(entry, str))
    assert set(uses) == set(TABLES[kind]) and min(uses.values()) > 1
    assert len(DIALECTS) == len(TABLES["dialect"]), "two dialects have one name"


def test_every_preset_of_distillation_stands_in_the_table_of_meanings_and_no_other() -> None:
    presets = {dialect.name for dialect in DIALECTS.values() if dialect.base in ("opd", "gkd")}
    assert {meaning.ours for meaning in MEANINGS} - {""} == presets
    assert len({meaning.library.partition(",")[0] for meaning in MEANINGS}) == 7  # the page says seven
    selves = {meaning.ours for meaning in SELF_TEACHERS} - {""}
    presets = {dialect.name for dialect in DIALECTS.values() if dialect.base in ("sdft", "sdpo", "opcd")}
    assert {name for name in selves if "@" in name} == presets
    assert {name.partition("@")[0] for name in selves} <= ALGORITHMS.keys()
