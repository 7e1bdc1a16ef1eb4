"""From rollouts to rewards: verdicts of the task, learned models, flawed proxies."""
