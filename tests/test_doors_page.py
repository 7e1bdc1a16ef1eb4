"""The study of docs/doors.md, as it stands: an algorithm, a task from a file, a reward and a callback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "doors.md"


def test_the_study_of_the_page_runs_and_is_found_done(tmp_path: Path) -> None:
    files = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert list(files) == ["mine.py", "study.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for _ in (1, 2):  # the second time everything is there
        done = subprocess.run(
            [sys.executable, "study.py"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip().endswith("results/study/report/index.html")
    place = tmp_path / "results" / "study"
    runs = {path.parent.name for path in place.glob("*/run.toml")}
    assert runs == {f"{arm}-sums-s{seed}" for arm in ("grpo", "half") for seed in (0, 1)}
    assert all(json.loads((place / run / "status.json").read_text())["attempt"] == 1 for run in runs)
    row = json.loads((place / "half-sums-s0" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["reward/mine:brevity"] < 0
    assert "step 3: reward" in (place / "half-sums-s0" / "log.txt").read_text()
