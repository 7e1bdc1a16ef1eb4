"""A reward as TRL's GRPOTrainer calls it: a number for each completion, or None where it does not apply."""


def brevity(prompts, completions, **columns):
    return [-len(text) / 100 for text in completions]
