"""Statistics, figures and reports, computed from run folders alone: nothing here knows a model or trains."""
