"""Train one run of this hand-over with TRL 1.16::

    accelerate launch train.py PART SEED

PART is a file of configs/, SEED one of provenance.json's. trainer_state.json and the final policy go to
outputs/PART-sSEED. Evaluations decode on the processes of `accelerate launch`, each its share of the
problems, so every process needs the whole policy: launch with DDP.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from grpobench.runs.handover.episodes import Episodes
from grpobench.runs.handover.grading import Graders, GradingError
from grpobench.runs.models.loading import load

HERE = Path(__file__).resolve().parent
AT_ONCE = 64
"""Problems that are decoded together in an evaluation."""


class Rewards:
    """TRL's reward functions: the recipe's reward, and whether the answer is right, which counts nothing."""

    def __init__(self, part: str, tokenizer: Any, overlong: dict[str, float]) -> None:
        self.part, self.tokenizer, self.overlong = part, tokenizer, overlong
        self.graders = Graders(HERE)
        self.right: list[float | None] = []

    def reward(
        self,
        completion_ids: Sequence[Sequence[int]],
        extra_info: Sequence[dict[str, Any]],
        turns: Sequence[Sequence[str]] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """The reward of each completion; None leaves out one that could not be graded. `turns` are those of
        an episode of several."""
        rewards: list[float | None] = []
        self.right = []
        episodes = turns or [()] * len(completion_ids)
        for tokens, problem, episode in zip(completion_ids, extra_info, episodes, strict=True):
            text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
            try:
                scores = self.graders.score(self.part, problem, text, episode)
            except GradingError as error:
                print(error, flush=True)
                rewards.append(None)
                self.right.append(None)
                continue
            rewards.append(scores["score"] - self.punishment(len(tokens)))
            self.right.append(scores["acc"])
        return rewards

    def correct(self, **_: Any) -> list[float | None]:
        """Of the completions that were rewarded last."""
        return self.right

    def punishment(self, length: int) -> float:
        """Soft overlong punishment (DAPO, eq. 13) of a completion of so many tokens."""
        buffer = self.overlong["buffer"]
        if not buffer:
            return 0.0
        beyond = (length - (self.overlong["limit"] - buffer)) / buffer
        return self.overlong["penalty"] * min(1.0, max(0.0, beyond))


class Evaluate(TrainerCallback):
    """Answers the problems of the evaluations, greedily or sampled, and logs shares of right answers."""

    def __init__(
        self,
        rewards: Rewards,
        rows: dict[str, list[dict[str, Any]]],
        settings: dict[str, Any],
        episodes: Episodes | None = None,
    ) -> None:
        self.rewards, self.rows, self.settings, self.episodes = rewards, rows, settings, episodes
        self.trainer: Any = None
        self.last = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.settings["before"]:
            self.evaluate(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        every = self.settings["every"]
        if every and state.global_step % every == 0:
            self.evaluate(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.evaluate(state)

    def evaluate(self, state: Any) -> None:
        """Evaluate at this update, unless it was done at it already."""
        if state.global_step == self.last:
            return
        self.last = state.global_step
        modes = {"greedy": 1} if self.settings["greedy"] else {}
        modes |= {"sampled": self.settings["samples"]} if self.settings["samples"] else {}
        accuracies = {
            f"eval/{split}/{mode}/correct": self.share(rows, mode, count)
            for split, rows in self.rows.items()
            for mode, count in modes.items()
        }
        state.log_history.append({"step": state.global_step, **accuracies})

    def share(self, rows: list[dict[str, Any]], mode: str, count: int) -> float:
        """Mean of `acc` over the answers of all processes."""
        from accelerate.utils import gather_object

        world, rank = self.trainer.accelerator.num_processes, self.trainer.accelerator.process_index
        mine = rows[rank::world]
        right = [
            self.rewards.graders.score(self.rewards.part, row["extra_info"], turns[-1], turns)["acc"]
            for start in range(0, len(mine), AT_ONCE)
            for row, answers in self.answers(mine[start : start + AT_ONCE], mode, count)
            for turns in answers
        ]
        gathered: list[float] = gather_object(right)
        return sum(gathered) / max(1, len(gathered))

    @torch.no_grad()
    def answers(
        self, rows: list[dict[str, Any]], mode: str, count: int
    ) -> list[tuple[dict[str, Any], list[list[str]]]]:
        """The answers to each problem, each as the policy's turns."""
        if self.episodes is not None:
            temperature = 0.0 if mode == "greedy" else self.settings["temperature"]
            return list(zip(rows, self.episodes.evaluate(rows, count, temperature), strict=True))
        tokenizer = self.trainer.processing_class
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        prompts = [encoded(tokenizer, list(row["prompt"])) for row in rows]
        longest = max(map(len, prompts))
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        ids = torch.tensor(
            [[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device
        )
        mask = torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device
        )
        how: dict[str, Any] = {"do_sample": False}
        if mode == "sampled":
            how = {
                "do_sample": True,
                "temperature": self.settings["temperature"],
                "num_return_sequences": count,
                "top_k": 0,
                "top_p": 1.0,
            }
        training = model.training
        model.eval()
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=self.settings["limit"],
            pad_token_id=pad,
            **how,
        )
        model.train(training)
        texts = [[text] for text in tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)]
        return [(row, texts[index * count : (index + 1) * count]) for index, row in enumerate(rows)]


def encoded(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a prompt; through the chat template where the tokenizer has one."""
    if not tokenizer.chat_template:
        return list(tokenizer.encode(messages[0]["content"]))
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file."""
    import pandas as pd

    return list(pd.read_parquet(path).to_dict("records"))


def split_evenly(rows: int, processes: int, parts: int) -> int:
    """Completions of a minibatch that a process takes at once."""
    if rows % (processes * parts):
        raise SystemExit(
            f"a minibatch has {rows} completions, which {processes} processes with --parts {parts} cannot "
            "share evenly; launch fewer processes or change --parts"
        )
    return rows // (processes * parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("::")[0])
    parser.add_argument("part", help="A file of configs/ without its ending.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--parts", type=int, default=1, help="Forward passes of a minibatch per process.")
    options = parser.parse_args(arguments)
    settings = json.loads((HERE / "configs" / f"{options.part}.json").read_text(encoding="utf-8"))
    runs = json.loads((HERE / "provenance.json").read_text(encoding="utf-8"))["hand_over"]["runs"]
    name = f"{options.part}-s{options.seed}"
    if name not in runs:
        raise SystemExit(f"{name} is no run of this hand-over; provenance.json has {', '.join(runs)}")
    train(name, runs[name], settings, options.parts)


def begin(
    run: dict[str, Any], settings: dict[str, Any], rows: list[dict[str, Any]]
) -> tuple[Any, Any, Episodes | None]:
    """The initial policy, its tokenizer and, for a task of several turns, what plays its episodes."""
    path = str(HERE / run["model"]) if run["model"].startswith("models/") else run["model"]
    config = Graders(HERE).config(run["part"])
    if config.task.turns != 1:
        loaded = load(path, chat_template=settings["chat_template"])
        return loaded.model, loaded.tokenizer, Episodes(config, loaded, run["seed"], rows)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    if not settings["chat_template"]:
        tokenizer.chat_template = None
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), tokenizer, None


def train(name: str, run: dict[str, Any], settings: dict[str, Any], parts: int) -> None:
    """Train a run and save its state and its policy."""
    import trl

    rows = read(HERE / run["train"])
    model, tokenizer, episodes = begin(run, settings, rows)
    rewards = Rewards(run["part"], tokenizer, settings["overlong"])
    table = [
        {
            "prompt": list(row["prompt"]) if tokenizer.chat_template else row["prompt"][0]["content"],
            "extra_info": row["extra_info"],
        }
        for row in rows
    ]
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    at_once = split_evenly(settings["rows"], processes, parts)
    out = HERE / "outputs" / name
    arguments = {
        **settings["arguments"],
        "output_dir": str(out),
        "seed": run["seed"],
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": parts,
        "steps_per_generation": parts * settings["minibatches"],
        "reward_weights": [1.0, 0.0],
        "use_cpu": not torch.cuda.is_available(),
    }
    evaluated = {split: read(HERE / path) for split, path in run["evaluated"].items()}
    evaluate = Evaluate(rewards, evaluated, settings["evaluate"], episodes)
    trainer = getattr(trl, f"{settings['trainer']}Trainer")(
        model=model,
        reward_funcs=[rewards.reward, rewards.correct],
        args=getattr(trl, f"{settings['trainer']}Config")(**arguments),
        train_dataset=Dataset.from_list(table),
        processing_class=tokenizer,
        callbacks=[evaluate],
        **({"rollout_func": episodes} if episodes else {}),
    )
    evaluate.trainer = trainer
    trainer.train()
    trainer.save_state()
    trainer.save_model(str(out / "final"))


if __name__ == "__main__":
    main()
