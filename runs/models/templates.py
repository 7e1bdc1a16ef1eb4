"""Chat templates under a bound: a model's folder brings a program, which may never end."""

# transformers renders templates in a sandbox that keeps them from the machine, but not from its time and
# memory. Here its own function renders them in a process of a pool, with limits on both.

from __future__ import annotations

import functools
from typing import Any, Final

from grpobench.runs.models import template_worker
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.workers.pool import Pool, Reply

SECONDS: Final = 5.0
"""Processor time of rendering one conversation. Templates in use take a few thousandths."""


MEMORY: Final = 2**30


# No process is started before the first conversation.
_pool = Pool(f"{template_worker.__name__}:renderer", SECONDS, MEMORY, workers=1)


class TemplateFailure(DataError):
    """A chat template that cannot be used; the message says why and what to do."""


@functools.cache
def bound() -> None:
    """From now on every chat template of this process is rendered under the bound, also by libraries that
    call a tokenizer of transformers themselves."""
    import transformers.tokenization_utils_base

    module: Any = transformers.tokenization_utils_base
    # A renamed function would leave templates without a bound, and nobody would notice.
    assert callable(module.render_jinja_template)
    # Here, where the name was imported: a change in the module that defines it would have no effect.
    module.render_jinja_template = render


def render(
    conversations: list[Any],
    tools: Any = None,
    documents: Any = None,
    chat_template: Any = None,
    **settings: Any,
) -> tuple[list[str], list[Any]]:
    """In place of transformers' function of this signature. Raises TemplateFailure."""
    settings |= {"tools": tools, "documents": documents, "chat_template": chat_template}
    plain = {name: value if value is None else _plain(value) for name, value in settings.items()}
    (reply,) = _pool.map([[conversations, plain]])
    if reply.ending == "done":
        return reply.value[0], reply.value[1]
    raise TemplateFailure(f"the model's chat template {_trouble(reply)}")


def _plain(value: Any) -> Any:
    """Special tokens are a kind of text that JSON does not know."""
    return value if isinstance(value, (bool, int, float, str, list, dict)) else str(value)


def _trouble(reply: Reply) -> str:
    remedy = "correct chat_template.jinja or tokenizer_config.json in its folder"
    if reply.ending == "timeout":
        return f"does not end: it was stopped after {SECONDS:.0f} seconds of processor time; {remedy}"
    if reply.ending == "crash":
        return f"took more than {MEMORY / 2**30:.0f} GiB of memory; {remedy}"
    if reply.ending == "raised":
        return f"does not take this conversation: {reply.value}; {remedy}"
    return f"could not be rendered: {reply.value or 'its process was killed again and again'}"
