"""Head-to-head comparison of GRPO, its variants and rivals, with stability and accuracy reports.

The four rooms at the top of the repository are sub-packages here: `grpobench.algorithms`, `grpobench.tasks`,
`grpobench.runs` and `grpobench.analysis`. Importing this package imports none of them.
"""

from grpobench.version import __version__

__all__ = ["__version__"]
