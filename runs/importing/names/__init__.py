"""What other libraries' metrics are called here, as tables."""
