"""Chat templates: the jinja2 text that turns a conversation into the prompt a model was trained on.

A template is code that came with the checkpoint, so it runs in a sandbox that keeps it from attributes and mutations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from loadmaster_hookspecs.errors import UsageError


def default_template(settings: Mapping[str, Any]) -> str:
    """Return the chat template in the settings: one text, or the one named `default` of several; empty when there is none."""
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else ""


def render_chat(template: str, messages: Sequence[Mapping[str, str]], special_tokens: Mapping[str, str]) -> str:
    """Return the prompt for a conversation, up to where the assistant answers.

    Raises UsageError when there is no template (an empty one), no message, or the template refuses the conversation.
    """
    if not template:
        raise UsageError(
            "LM-CHAT-NO-TEMPLATE",
            "the model has no chat template",
            why="neither chat_template.jinja nor a chat_template in tokenizer_config.json lies beside the weights",
            hints=("give the prompt as plain text", "or use the instruction-tuned version of the model"),
        )
    conversation = [{key: value for key, value in message.items() if value is not None} for message in messages]
    if not conversation:
        raise UsageError("LM-CHAT-EMPTY", "the conversation has no message")
    names = {"messages": conversation, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return _compiled(template).render({**special_tokens, **names})
    except Exception as error:  # boundary: the template is code that came with the checkpoint
        raise UsageError(
            "LM-CHAT-TEMPLATE",
            "the model's chat template does not accept the conversation",
            why=f"{type(error).__name__}: {error}",
            hints=("most templates want user and assistant in turns, after at most one system message",),
        ) from error


class _GenerationTag(Extension):
    """Accepts `{% generation %}`, which marks the assistant's words for training; here its content is simply rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """Compile a chat template in a sandbox, with the names that templates on the Hugging Face hub rely on."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace jinja's filter of this name, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
