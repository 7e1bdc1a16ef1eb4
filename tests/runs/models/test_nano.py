"""The script that makes the built-in policies, and what is shipped."""

import json
from pathlib import Path

import pytest
import torch

from grpobench.runs.models.loading import load
from grpobench.runs.models.model_files import POLICIES, missing
from grpobench.runs.models.nano import ALPHABET, VOCABULARY, architecture, character_tokenizer, upcycled


def test_every_printable_character_and_the_newline_survive_a_round_trip() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer.encode(ALPHABET)
    assert len(ids) == len(set(ids)) == len(ALPHABET) == VOCABULARY - 3
    assert tokenizer.decode(ids) == ALPHABET
    assert tokenizer.encode("é") == [tokenizer.unk_token_id]


def test_a_mixture_of_equal_experts_gives_the_dense_model_s_logits() -> None:
    torch.manual_seed(0)
    dense, mixture = architecture("dense").eval(), architecture("moe").eval()
    tokens = torch.randint(3, VOCABULARY, (2, 17))
    with torch.no_grad():
        upcycled(dense, mixture, noise=0.0)
        # float32 sums in another order
        torch.testing.assert_close(
            mixture(input_ids=tokens).logits, dense(input_ids=tokens).logits, rtol=1e-4, atol=1e-5
        )
        upcycled(dense, mixture, noise=0.1)
        assert not torch.allclose(mixture(input_ids=tokens).logits, dense(input_ids=tokens).logits, atol=1e-3)


def test_shipped_policies_load_and_say_how_they_were_made() -> None:
    for name, least, most in (("nano", 0.8e6, 1.2e6), ("nano-moe", 2e6, 3e6)):
        loaded = load(name)
        assert least < sum(p.numel() for p in loaded.model.parameters()) < most
        provenance = json.loads((POLICIES / name / "provenance.json").read_text())
        assert provenance["commands"][-1].startswith(f"python -m grpobench.runs.models.nano {name} ")
        assert sum(path.stat().st_size for path in (POLICIES / name).iterdir()) < 8e6


def test_folder_sharing_a_known_model_name_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nano").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert missing("nano") == ""
    assert "mine has no config.json" in missing("mine")
