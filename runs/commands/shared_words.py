"""Options that several commands share."""

from __future__ import annotations

import argparse


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
