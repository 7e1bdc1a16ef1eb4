"""What is measured: metrics of rollouts and updates, evaluations."""
