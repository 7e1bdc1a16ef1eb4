"""One run of `--case grid` as a user of TRL would write it: a script with GRPOTrainer and evaluations."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpobench.tasks.task import Problem, Split, Task, Verdict


@dataclass(frozen=True)
class TRLJob:
    """The input of the script: the settings of our run of the same task and seed."""

    task: str
    seed: int
    model: str
    """A folder."""
    folder: str
    """Folder of the script's files; `DONE` in it has the outcome."""
    steps: int
    prompts: int
    group: int
    limit: int
    """Maximum number of tokens of a completion."""
    temperature: float
    arguments: Mapping[str, Any]
    """Settings of GRPOConfig: the objective, the optimizer, and settings that only affect cost."""
    every: int
    """Steps between evaluations on the validation split; 0: only before and after training."""
    problems: Mapping[Split, int]
    samples: int
    greedy: bool
    sampled_at: float
    """Temperature of sampled answers in evaluations."""


@dataclass
class GridResult:
    """What a run of either side did."""

    task: str
    seed: int
    train_s: float = 0.0
    evaluate_s: float = 0.0
    completions: int = 0
    """Number of completions that were trained on."""
    tokens: int = 0
    """Tokens of these completions."""
    answers: dict[str, int] = field(default_factory=dict)
    """Graded answers of each evaluation, by ``step/split/mode``."""
    accuracy: dict[str, float] = field(default_factory=dict)
    """Mean of `correct`, with the same keys."""

    def add(self, evaluation: str, correct: Sequence[float]) -> None:
        self.answers[evaluation] = len(correct)
        self.accuracy[evaluation] = sum(correct) / len(correct)


DONE = "outcome.json"


class Script:
    """The run: model, data, reward, evaluation.

    It takes the task from grpobench: problems and their verifier, which is also the reward. Evaluation calls
    `generate` of transformers on all problems of a split in one padded batch, the cheapest way that
    transformers has: once greedily and once with several sampled answers to each problem."""

    def __init__(self, job: TRLJob, task: Task) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.job, self.task = job, task
        self.model: Any = AutoModelForCausalLM.from_pretrained(job.model, dtype="float32")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(job.model)
        self.problems = task.problems("train")
        self.outcome = GridResult(task.name, job.seed)

    def reward(
        self, completions: Sequence[str], completion_ids: Any, problem: Any, **_: Any
    ) -> list[float | None]:
        """The verifier's score of each completion; TRL passes those of one problem in sequence."""
        self.outcome.completions += len(completions)
        self.outcome.tokens += sum(map(len, completion_ids))
        group = self.job.group
        problems = [self.problems[number] for number in problem[::group]]
        verdicts = self.verify(problems, completions, group)
        weights = self.task.reward
        return [sum(w * v.scores[name] for name, w in weights.items()) for v in verdicts]

    def verify(self, problems: Sequence[Problem], completions: Sequence[str], each: int) -> Iterable[Verdict]:
        """The verdicts on `each` completions of every problem, in order."""
        parts = [completions[start : start + each] for start in range(0, len(completions), each)]
        verdict_groups = self.task.verify_all(problems, [[(text,) for text in part] for part in parts])
        return [verdict for group_verdicts in verdict_groups for verdict in group_verdicts]

    def evaluate(self, step: int) -> None:
        """Run the evaluations that are due: validation on schedule, test before and after training."""
        job, began = self.job, time.perf_counter()
        edge = step in (0, job.steps)
        due: list[Split] = ["validation"] if edge or (job.every and step % job.every == 0) else []
        training = self.model.training
        self.model.eval()
        if edge:
            due.append("test")
        for split in due:
            if count := job.problems[split]:
                self._evaluate(f"{step}/{split}", self.task.problems(split)[:count])
        self.model.train(training)
        self.outcome.evaluate_s += time.perf_counter() - began

    def _evaluate(self, name: str, problems: Sequence[Problem]) -> None:
        if self.job.samples:
            drawn = {"do_sample": True, "temperature": self.job.sampled_at, "top_k": 0, "top_p": 1.0}
            self._answer(f"{name}/sampled", problems, self.job.samples, drawn)
        if self.job.greedy:
            self._answer(f"{name}/greedy", problems, 1, {"do_sample": False})

    def _answer(self, name: str, problems: Sequence[Problem], each: int, how: Mapping[str, Any]) -> None:
        import torch

        texts = [problem.prompt for problem in problems]
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
        batch = {key: batch[key].to(self.model.device) for key in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            written = self.model.generate(
                **batch, max_new_tokens=self.job.limit, num_return_sequences=each, **how
            )
        answers = self.tokenizer.batch_decode(
            written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        verdicts = self.verify(problems, answers, each)
        self.outcome.add(name, [verdict.scores["correct"] for verdict in verdicts])

    def train(self) -> None:
        """All steps, with the evaluations between them."""
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        job, script = self.job, self

        class Evaluations(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                script.evaluate(int(state.global_step))

        trainer: Any = GRPOTrainer(
            model=self.model,
            reward_funcs=self.reward,
            args=GRPOConfig(
                output_dir=job.folder,
                per_device_train_batch_size=job.prompts * job.group,
                gradient_accumulation_steps=1,
                steps_per_generation=1,
                num_generations=job.group,
                max_completion_length=job.limit,
                max_steps=job.steps,
                temperature=job.temperature,
                seed=job.seed,
                logging_steps=1,
                **job.arguments,
            ),
            train_dataset=Dataset.from_list(
                [
                    {"prompt": problem.prompt, "problem": number}
                    for number, problem in enumerate(self.problems)
                ]
            ),
            processing_class=self.tokenizer,
            callbacks=[Evaluations()],
        )
        self.evaluate(0)
        before, began = self.outcome.evaluate_s, time.perf_counter()
        trainer.train()
        evaluated = self.outcome.evaluate_s - before
        self.outcome.train_s = time.perf_counter() - began - evaluated
        trainer.save_model(str(Path(job.folder) / "final"))


def main(path: str) -> None:
    import torch

    from grpobench.runs.train.trl.arguments import quiet
    from grpobench.tasks import TASKS

    torch.set_num_threads(1)
    quiet()
    job = TRLJob(**json.loads(Path(path).read_text(encoding="utf-8")))
    script = Script(job, TASKS[job.task]())
    script.train()
    (Path(job.folder) / DONE).write_text(json.dumps(asdict(script.outcome)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
