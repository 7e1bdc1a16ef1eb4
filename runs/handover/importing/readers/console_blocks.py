"""Steps that a console prints over several lines, as NeMo-RL, SkyRL and AReaL do."""

from __future__ import annotations

import re

RAY = re.compile(r"^\(\w+ (?:pid|ip)=[^)]*\) ")
SKYRL_STEP = re.compile(r"tracking:log:\d+ - Step (\d+):\s*$")
SKYRL_PAIR = re.compile(r"^[ {]'([^']+)': '?([^',{}]+)'?[,}]+$")
AREAL_STEP = re.compile(r"StatsLogger INFO: Epoch \d+/\d+ Step \d+/\d+ Train step (\d+)/(\d+) done")
NEMO_STEP = re.compile(r"={25} Step (\d+)/(\d+) ={25}")
NEMO_SECTION = re.compile(
    r"^\s*\S+\s+(Training Results|Timing|Validation Results|Validation Timing|\w.*):\s*$"
)
NEMO_NUMBER = re.compile(r"^\s+• ([^:]+): (\S+?)s?(?: tokens| \([\d.]+%\))?\s*$")
NEMO_NAMES = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": "train/filtered_reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Accuracy": "validation/accuracy",
    "Average response length": "validation/avg_length",
    "Total step time": "timing/train/total_step_time",
    "Total validation time": "timing/validation/total_validation_time",
}
"""Names in its trackers of what NeMo-RL's console prints, but for the parts of a step's time."""


class StepReader:
    """The step whose lines are read."""

    def __init__(self) -> None:
        self.step = ""
        """Its number as digits; empty outside of a step."""
        self.planned = 0
        """Steps of the run, if the console says."""

    def read(self, line: str, cut: bool) -> tuple[str, dict[str, str]]:
        """The step and the numbers of a line by their names, as texts; no step for any other line. `cut` is
        whether the file ends within the line."""
        raise NotImplementedError


class SkyRLReader(StepReader):
    """A line with the step, then a dictionary over several lines, with numbers as texts."""

    def read(self, line: str, cut: bool) -> tuple[str, dict[str, str]]:
        plain = RAY.sub("", line)
        if match := SKYRL_STEP.search(plain):
            self.step = match[1]
            return "", {}
        pair = SKYRL_PAIR.match(plain) if self.step and not cut else None
        if pair is None:
            return "", {}
        step = self.step
        if plain.endswith("}"):
            self.step = ""
        # Four decimals leave nothing of a learning rate.
        return step, {} if pair[1].endswith("_lr") and float(pair[2]) == 0 else {pair[1]: pair[2]}


class ARealReader(StepReader):
    """A line with the step, counted from 1, then a table with several names and numbers in a row."""

    def read(self, line: str, cut: bool) -> tuple[str, dict[str, str]]:
        if match := AREAL_STEP.search(line):
            self.step, self.planned = str(int(match[1]) - 1), int(match[2])
        elif "╘" in line:
            self.step = ""
        elif self.step and "│" in line and not cut:
            cells = [cell.strip() for cell in line.split("│")[1:-1]]
            names_numbers = zip(cells[::2], cells[1::2], strict=False)
            return self.step, {name: number for name, number in names_numbers if name and number}
        return "", {}


class NeMoReader(StepReader):
    """A line with the step, then sections with a number per line. Validations come before their step's
    results, and one before the first step is of step 0. The count begins anew with each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.step = "0"
        self.section = ""
        self.epochs = 0
        """Steps of the epochs that ended."""

    def read(self, line: str, cut: bool) -> tuple[str, dict[str, str]]:
        if match := NEMO_STEP.search(line):
            number, total = int(match[1]), int(match[2])
            if number == 1 and self.planned and int(self.step) == self.planned:
                self.epochs = self.planned
            self.step, self.planned, self.section = str(self.epochs + number), self.epochs + total, ""
        elif match := NEMO_SECTION.match(line):
            self.section = match[1]
        elif self.section and not cut and (match := NEMO_NUMBER.match(line)):
            label, number_text = match[1], match[2]
            name = NEMO_NAMES.get(label, f"timing/train/{label}" if self.section == "Timing" else "")
            return (self.step, {name: number_text}) if name else ("", {})
        return "", {}
