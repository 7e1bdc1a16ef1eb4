"""`grpobench docs`, which writes pages, and `grpobench keep`, which keeps the results that they show."""

from __future__ import annotations

import argparse

from grpobench.analysis.kept.kept import as_text, keep
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.load import load
from grpobench.runs.commands.output import DONE, say
from grpobench.runs.inventory import filled, pages
from grpobench.runs.tools import files
from grpobench.tasks.data.errors import DataError


def docs_command(options: argparse.Namespace) -> int:
    for path in pages.write(options.folder or pages.own_folder()):
        say(path)
    return DONE


def keep_command(options: argparse.Namespace) -> int:
    folder = options.to or pages.own_folder("name one: --to DIR") / filled.FOLDER
    try:
        content = keep(load(options.folder))
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(folder / f"{content['name']}.json", as_text(content).encode())
    say(f"{folder / content['name']}.json; grpobench docs writes it into the pages")
    return DONE
