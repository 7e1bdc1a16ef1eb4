"""What a model's folder may do: run no code, render no endless template, state no false size."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.edits import edit

from grpobench.runs import cli
from grpobench.runs.models import loading, model_files, sizes, templates, trust
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.reward import model as scorer
from grpobench.tasks.data.tables import DataError

ENDLESS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}" + "{% endfor %}" * 3
)
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a good model, to be spoilt."""
    shutil.copytree(model_files.POLICIES / "nano", tmp_path / "model")
    return tmp_path / "model"


# Code


@pytest.fixture
def bringing_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model under a type that transformers does not know, with code that leaves a mark when it runs."""
    kind = type(loading.load(str(folder)).model).__name__
    base = kind.removesuffix("ForCausalLM")
    (folder / "own.py").write_text(f"""
from pathlib import Path
from transformers import {base}Config, {kind}
Path({str(tmp_path / "mark")!r}).write_text("ran")
class OwnConfig({base}Config):
    model_type = "own-{base.lower()}"
class OwnModel({kind}):
    config_class = OwnConfig
""")
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    edit(folder / "config.json", lambda c: c.update(model_type=f"own-{base.lower()}", auto_map=auto_map))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv(trust.VARIABLE, "")  # and what the test sets goes with it
    return folder


def words(folder: Path, tmp_path: Path) -> list[str]:
    """Of a command that loads the model."""
    question = ["--task", "arithmetic", "--problems", "1", "--samples", "1"]
    return ["eval", str(folder), *question, "--out", str(tmp_path / "out")]


def test_code_of_a_folder_does_not_run_for_a_yes_from_a_pipe(bringing_code: Path, tmp_path: Path) -> None:
    start = "import sys; from grpobench.runs import cli; sys.exit(cli.main())"
    command = [sys.executable, "-P", "-c", start, *words(bringing_code, tmp_path)]
    done = subprocess.run(command, input="y\n" * 4, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--trust-remote-code" in done.stderr
    assert not (tmp_path / "mark").exists()


def test_code_of_a_folder_runs_with_the_flag_and_that_is_recorded(
    bringing_code: Path, tmp_path: Path
) -> None:
    assert cli.main([*words(bringing_code, tmp_path), "--trust-remote-code"]) == 0
    assert (tmp_path / "mark").read_text() == "ran"
    records = [path.read_text() for path in (tmp_path / "out").rglob("*.json")]
    assert any('"trust_remote_code": "yes"' in text for text in records)


def test_trust_is_for_one_command_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.VARIABLE, "")
    assert not trust.trusted() and trust.recorded() == {}
    trust.allow()
    command = [sys.executable, "-c", "from grpobench.runs.models import trust; print(trust.trusted())"]
    assert trust.trusted()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    monkeypatch.setenv(trust.VARIABLE, "1")  # left behind by another
    assert not trust.trusted()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_code_of_a_reward_model_does_not_run(
    bringing_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelError, match="--trust-remote-code"):
        scorer.read(str(bringing_code), "float32")
    assert not (tmp_path / "mark").exists()


# Sizes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": 2**20}, "describes a model of"),
        ({"intermediate_size": 2**33}, "describes a model of"),
        ({"vocab_size": 2**40}, "describes a model of"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers = 1000000000000"),
        ({"num_hidden_layers": 1000}, "describes a model of"),
        ({"num_local_experts": 10**9}, "num_local_experts"),
        ({"num_labels": 10**12}, "num_labels"),
        ({"text_config": {"num_hidden_layers": 10**12}}, "num_hidden_layers"),
    ],
    ids=lambda item: item if isinstance(item, str) else "-".join(item),
)
def test_sizes_that_the_weights_do_not_have_are_refused(
    folder: Path, change: dict[str, Any], reason: str
) -> None:
    edit(folder / "config.json", lambda config: config.update(change))
    with pytest.raises(ModelError, match=reason):
        loading.load(str(folder))
    if "describes" not in reason:
        with pytest.raises(ModelError, match=reason):
            loading.load_outline(str(folder))


def test_tables_beside_the_weights_have_a_bound() -> None:
    file_sizes = sizes.WeightCounts(tensors=1, elements=10, size=40)
    with torch.device("meta"):
        model = torch.nn.Linear(2, 3)
        model.register_buffer("mask", torch.ones(2**14, 2**14))
    sizes.check_model(torch.nn.Linear(2, 3), None, file_sizes)
    sizes.check_model(model, None, sizes.WeightCounts(1, 10, 2**30))
    model.register_buffer("mask", torch.ones(2**15, 2**14, device="meta"))
    with pytest.raises(sizes.Absurd, match=r"tables of 2\.0 GiB"):
        sizes.check_model(model, None, file_sizes)


def test_weights_of_fewer_bits_are_counted_by_the_byte() -> None:
    """A file of 20 bytes may hold 160 weights of a bit each, where config.json says that it is quantized."""

    class Quantized:
        quantization_config: Any = None

    config, model = Quantized(), torch.nn.Linear(16, 16)  # 272 weights
    with pytest.raises(sizes.Absurd, match="272 weights"):
        sizes.check_model(model, config, sizes.WeightCounts(2, 20, 20))
    config.quantization_config = {"bits": 1}
    sizes.check_model(model, config, sizes.WeightCounts(2, 20, 20))
    with pytest.raises(sizes.Absurd, match="hold 80"):
        sizes.check_model(model, config, sizes.WeightCounts(2, 20, 10))


# Templates


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates._pool, "cpu_seconds", 1.0)


SPOILT = {
    "endless": (ENDLESS, "does not end"),
    "calls itself": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "does not end",
    ),
    "eats memory": ("{{ ('x' * 10000000000)[:1] }}", "memory|does not take"),
    "long": ("{{ 'x' * 20000000 }}", "10,000,000 characters"),
    "raises": ("{{ raise_exception('only assistants') }}", "only assistants"),
    "broken": ("{% for %}", "does not take"),
}


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.usefixtures("hurried")
def test_template_that_cannot_be_used_is_refused_before_anything_runs(folder: Path, name: str) -> None:
    template, reason = SPOILT[name]
    edit(folder / "tokenizer_config.json", lambda config: config.update(chat_template=template))
    with pytest.raises(ModelError, match=reason):
        loading.load(str(folder))
    with pytest.raises(ModelError, match=reason):
        loading.load_outline(str(folder))


@pytest.mark.usefixtures("hurried")
def test_template_that_ends_for_some_prompts_only_is_stopped_at_the_others(folder: Path) -> None:
    template = "{% if 'open' in messages[0].content %}" + ENDLESS + "{% endif %}" + PLAIN
    edit(folder / "tokenizer_config.json", lambda config: config.update(chat_template=template))
    loaded = loading.load(str(folder))
    assert loaded.decode(loaded.encode("1+2=")) == "1+2="
    with pytest.raises(DataError, match="does not end"):
        loaded.encode("open sesame")
    with pytest.raises(DataError, match="does not end"):  # as lm-eval and TRL render
        loaded.tokenizer.apply_chat_template([{"role": "user", "content": "open"}], tokenize=False)
    assert loaded.decode(loaded.encode("1+2=")) == "1+2="


def test_templates_mean_under_the_bound_what_they_mean_to_transformers() -> None:
    from transformers.utils import chat_template_utils

    block = "{% generation %}{{ bos_token }}{{ m | tojson }}{% endgeneration %}"
    talk = [
        {"role": "user", "content": "a <b> \n é\ud800"},
        {"role": "assistant", "content": "c", "tools": None},
    ]
    for template in (
        PLAIN,
        "{% for m in messages %}\n  " + block + "\n{% endfor %}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "{% if add_generation_prompt %}>{% endif %}{{ tools is none }}{{ enable_thinking }}",
    ):
        settings = {"chat_template": template, "add_generation_prompt": True, "enable_thinking": False}
        settings |= {
            "bos_token": "<s>",
            "return_assistant_tokens_mask": False,
            "continue_final_message": False,
        }
        theirs = chat_template_utils.render_jinja_template([talk], **settings)
        texts, spans = templates.render([talk], **settings)
        assert (texts, list(map(list, spans))) == (theirs[0], list(map(list, theirs[1])))


def test_reward_model_with_an_endless_template_is_refused(folder: Path, hurried: None) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(folder, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    scorer.read(str(folder), "float32")
    edit(folder / "tokenizer_config.json", lambda config: config.update(chat_template=ENDLESS))
    with pytest.raises(ModelError, match="does not end"):
        scorer.read(str(folder), "float32")
    edit(folder / "config.json", lambda config: config.update(num_hidden_layers=900))
    with pytest.raises(ModelError, match="describes a model of"):
        scorer.read(str(folder), "float32")
