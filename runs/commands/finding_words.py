"""The words of `grpobench finding`."""

from __future__ import annotations

import argparse
from pathlib import Path

from grpobench.runs.commands.numbers import whole
from grpobench.runs.commands.shared_words import add_data, add_trust, add_unsafe, add_where


def finding_words(finding: argparse.ArgumentParser) -> None:
    actions = finding.add_subparsers(required=True, metavar="list|show|run|judge")
    kinds = {
        "list": "every finding with its verdict",
        "show": "claim, source, rule and verdict of one",
        "run": "register it, run what has no result yet, and judge it; `all` does so with every finding",
        "judge": "judge its runs again, or its kept table where there is no complete matrix of them",
    }
    for name, what in kinds.items():
        action = actions.add_parser(name, help=what, description=what)
        action.set_defaults(command=f"finding {name}", light=True)
        if name != "list":
            every = ", or all" * (name == "run")
            which = f"one of grpobench finding list, or a TOML file{every}"
            action.add_argument("name", metavar="NAME", help=which)
        if name == "run":
            finding_run_words(action)
        else:
            finding_place_words(action)
        action.add_argument("--json", action="store_true", help="with --dry-run" if name == "run" else None)


def finding_place_words(action: argparse.ArgumentParser) -> None:
    action.add_argument("--scale", choices=("nano", "small", "full"), default="nano")
    place = Path("results/findings")
    action.add_argument("--out", type=Path, default=place, metavar="DIR", help="default: ./results/findings")


def finding_run_words(action: argparse.ArgumentParser) -> None:
    finding_place_words(action)
    options = {
        "--seeds": {"metavar": "LIST", "help": "other seeds than registered, in another --out"},
        "--workers": {"type": whole, "metavar": "N", "help": "runs side by side, as with run"},
    }
    for name, given in options.items():
        action.add_argument(name, **given)  # type: ignore[arg-type]
    action.add_argument("--set", dest="sets", metavar="K=V", action="append", default=[], help="as with run")
    action.add_argument("--allow-change", action="store_true", help="as with run")
    action.add_argument("--dry-run", action="store_true", help="as with run; registers nothing")
    add_where(action)
    add_data(action)
    add_trust(action)
    add_unsafe(action)
