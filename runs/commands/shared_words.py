"""Options that several commands share."""

from __future__ import annotations

import argparse

from grpobench.runs.commands.numbers import whole


def add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data-dir", metavar="DIR", help="folder with data sets, looked into first")
    command.add_argument("--model-dir", metavar="DIR", help="folder of model folders, looked into first")
    command.add_argument(
        "--skip-bad", action="store_true", help="leave out malformed rows, at most 1 %% of a table; recorded"
    )


def add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that a model brings along with its files, with all your rights; recorded",
    )


def add_unsafe(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--unsafe-exec",
        action="store_true",
        help="where bubblewrap does not work, run programs that a model wrote with all your rights",
    )


def add_where(run: argparse.ArgumentParser) -> None:
    """Where runs are executed."""
    run.add_argument(
        "--on",
        choices=("local", "ray", "slurm", "submitit-local"),
        default="local",
        help="what executes the runs: processes of this machine, a Ray cluster, Slurm jobs through submitit, "
        "or submitit's local jobs; elsewhere than here --out must be on storage that all nodes see",
    )
    run.add_argument(
        "--address", default="", metavar="A", help="with --on ray: of the cluster; default: one made here"
    )
    run.add_argument(
        "--gpus-per-run",
        type=float,
        metavar="X",
        help="a fraction shares a GPU among runs; default: 1 where there are GPUs",
    )
    run.add_argument(
        "--cpus-per-run",
        type=whole,
        metavar="N",
        help="threads of a run elsewhere than here; default: OMP_NUM_THREADS, else 1",
    )
    run.add_argument(
        "--job",
        metavar="K=V",
        action="append",
        default=[],
        help="with --on slurm: what submitit's executor is told, as timeout_min=240 or slurm_partition=gpu",
    )
