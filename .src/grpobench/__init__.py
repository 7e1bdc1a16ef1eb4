"""Head-to-head comparison of GRPO, its variants and rivals, with stability and accuracy reports.

    import grpobench

    results = grpobench.run("quickstart")
    results.summary()

`docs/python-api.md` shows all of it. The four rooms at the top of the repository are sub-packages here:
`grpobench.algorithms`, `grpobench.tasks`, `grpobench.runs` and `grpobench.analysis`. Importing this package
imports none of them: each name below is imported when it is first used.
"""

from grpobench.version import __version__

TYPE_CHECKING = False  # type checkers take it as True; the module typing is not imported for it
if TYPE_CHECKING:
    from grpobench.analysis.runfolder.files import LogError
    from grpobench.analysis.statistics.comparison import Comparison
    from grpobench.runs.api.comparing import Compared, compare
    from grpobench.runs.api.experiments import RunError, run
    from grpobench.runs.api.importing import import_logs
    from grpobench.runs.api.listing import list, show
    from grpobench.runs.api.recipes import recipe
    from grpobench.runs.api.results import Results, load
    from grpobench.runs.api.searching import SearchResults, search
    from grpobench.runs.settings.recipe import Recipe
    from grpobench.runs.tools.lock import FolderError
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.tables import DataError
else:
    _HOMES = {
        "LogError": "analysis.runfolder.files",
        "Comparison": "analysis.statistics.comparison",
        "Compared": "runs.api.comparing",
        "compare": "runs.api.comparing",
        "import_logs": "runs.api.importing",
        "RunError": "runs.api.experiments",
        "run": "runs.api.experiments",
        "list": "runs.api.listing",
        "show": "runs.api.listing",
        "recipe": "runs.api.recipes",
        "Results": "runs.api.results",
        "load": "runs.api.results",
        "SearchResults": "runs.api.searching",
        "search": "runs.api.searching",
        "Recipe": "runs.settings.recipe",
        "FolderError": "runs.tools.lock",
        "ConfigError": "runs.tools.strict",
        "DataError": "tasks.data.tables",
    }
    _MEETS_TORCH = {"RunError", "run", "list", "show", "recipe", "Recipe", "search", "SearchResults"}
    """Names whose modules import torch, of which the process that starts runs needs nothing."""

    def __getattr__(name):
        """Import a name of `_HOMES` when it is first asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if name in _MEETS_TORCH:
            import_module("grpobench.runs.tools.deferred").defer("torch")
        exported = getattr(import_module(f"grpobench.{_HOMES[name]}"), name)
        globals()[name] = exported
        return exported

    def __dir__():
        """What there is to use, imported or not."""
        return sorted({*globals(), *_HOMES})


__all__ = [
    "Compared",
    "Comparison",
    "ConfigError",
    "DataError",
    "FolderError",
    "LogError",
    "Recipe",
    "Results",
    "RunError",
    "SearchResults",
    "__version__",
    "compare",
    "import_logs",
    "list",
    "load",
    "recipe",
    "run",
    "search",
    "show",
]
