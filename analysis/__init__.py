"""Statistics, figures and reports, from run folders alone: nothing here knows a model or the harness.

The rooms in order, each importing only from those before it: `tools`, `logs` (reads the folders),
`statistics` (pure functions of arrays), `detect` (events of instability in one run, which runs look for
themselves while they go on), `summary` (the numbers, a file per subject), `checks` (what a reader must know
before them), `figures`, `tables`, `report` (the page around both), `kept` (what stays in the repository).
"""
