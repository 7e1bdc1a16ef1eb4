"""Arguments, prompts and silence that every trainer of TRL's is given here and in benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpobench.tasks.data.messages import Prompt, as_messages, as_text

if TYPE_CHECKING:
    from grpobench.runs.models.loading import Loaded


def plain_arguments(folder: str) -> dict[str, Any]:
    """What every trainer of ours is given. Where TRL has a choice that changes only cost, the faster one: no
    gradient checkpointing (its default is on, which was 18 % slower on nano; on smollm2-135m it took as long
    at 8 GiB instead of 14). It reports to nobody and saves nothing."""
    return {
        "output_dir": folder,
        "gradient_checkpointing": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "router_aux_loss_coef": 0.0,  # None takes the architecture's own; our loss has no such term
        "lr_scheduler_type": "constant",  # the default falls to 0 over the steps
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def prompts(loaded: Loaded, originals: Sequence[Prompt]) -> list[Any]:
    """Prompts as TRL's trainers encode them to the tokens that `Loaded.encode` gives: messages if the model
    has a chat template, else texts."""
    return list(map(as_messages if loaded.has_chat_template else as_text, originals))


def quiet() -> None:
    """Keep progress bars and advice to oneself."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
