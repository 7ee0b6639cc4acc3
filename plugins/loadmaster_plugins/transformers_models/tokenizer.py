"""A checkpoint's tokenizer in the host process, without torch and transformers.

The results equal transformers' own for tokenizers stored as `tokenizer.json`: that file decides, the settings beside it add
special tokens and the chat template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from loadmaster_hookspecs.errors import IntegrityError, UsageError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import FileReader
from loadmaster_plugins.transformers_models.chat_template import default_template, render_chat

TOKENIZER: Final = "tokenizer.json"
SETTINGS: Final = "tokenizer_config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
CHAT_TEMPLATE: Final = "chat_template.jinja"

CONVERTIBLE: Final = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json", "tiktoken.model")
"""Vocabularies of other kinds, which transformers can convert to `tokenizer.json`."""

LFS_SIGNATURE: Final = b"version https://git-lfs.github.com/spec/"

STANDARD_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The names that come first when tokens are added, whatever their order in the file."""

_TOKEN_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")

_CLEAN_UP: Final = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}
"""The spaces that word-piece tokenizers put in front of punctuation, in the order in which they are removed."""


class CheckpointTokenizer:
    """The tokenizer that lies beside a model's weights. Holds its vocabulary in memory; safe to use from several threads."""

    def __init__(self, backend: Backend, special_tokens: Mapping[str, str], template: str, *, clean_up: bool) -> None:
        self._backend = backend
        self._special_tokens = dict(special_tokens)
        self._template = template
        self._clean_up = clean_up

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of `text`; with `special` also those that the post-processor adds around it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        if self._clean_up:
            for spaced, tight in _CLEAN_UP.items():
                text = text.replace(spaced, tight)
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt for a conversation, ready for the assistant to answer.

        Raises UsageError when the model has no chat template, and when its template refuses the conversation.
        """
        return render_chat(self._template, messages, self._special_tokens)


def load_tokenizer(index: CheckpointIndex, read: FileReader) -> CheckpointTokenizer:
    """Return the tokenizer of a checkpoint; `read` reads files that lie beside its weights.

    Raises UsageError when there is no `tokenizer.json`, IntegrityError when a tokenizer file is malformed.
    """
    raw = read(TOKENIZER)
    if raw is None:
        raise _missing(index, read)
    backend = _backend(raw)
    settings = _settings(read)
    named = _named_tokens(settings)
    _add_tokens(backend, settings, named)
    template = read(CHAT_TEMPLATE)
    return CheckpointTokenizer(
        backend,
        {name: token.content for name, token in named.items()},
        _text(CHAT_TEMPLATE, template) if template is not None else default_template(settings),
        clean_up=bool(settings.get("clean_up_tokenization_spaces")) and type(backend.model).__name__ != "BPE",
    )


def _backend(raw: bytes) -> Backend:
    """Return the tokenizer that `tokenizer.json` describes, without the truncation and padding it may have been saved with."""
    text = _text(TOKENIZER, raw)
    try:
        backend = Backend.from_str(text)
    except Exception as error:  # noqa: BLE001 # boundary: the library raises plain Exception for every malformed file
        raise _invalid(TOKENIZER, str(error)) from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _settings(read: FileReader) -> dict[str, Any]:
    """Return `tokenizer_config.json`, with `special_tokens_map.json` over it for checkpoints of the older layout."""
    settings = _object(read, SETTINGS)
    if "added_tokens_decoder" not in settings:
        settings |= _object(read, SPECIAL_TOKENS)
    return settings


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Return the special tokens that have a name (`bos_token`, ...): those that templates may refer to."""
    extra = settings.get("extra_special_tokens")
    values = {name: settings.get(name) for name in STANDARD_NAMES}
    values |= {name: value for name, value in settings.items() if name.endswith("_token")}
    values |= _items(extra)
    tokens = {name: _token(value, special=True) for name, value in values.items()}
    return {name: token for name, token in tokens.items() if token}


def _add_tokens(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, AddedToken]) -> None:
    """Add the tokens that the settings know and `tokenizer.json` does not, in transformers' order, so that ids agree."""
    stored = settings.get("added_tokens_decoder")
    by_id = {int(key): value for key, value in _items(stored) if key.isdecimal() and len(key) < 10}
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    special = {token.content for token in named.values()}
    candidates = [_token(value, special=_content(value) in special) for _, value in sorted(by_id.items())]
    candidates += named.values()
    candidates += [_token(value, special=True) for value in extra] if isinstance(extra, list) else []
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    new: dict[str, AddedToken] = {}
    for token in candidates:
        if token and token.content not in known:
            new.setdefault(token.content, token)
    backend.add_tokens(list(new.values()))
    backend.encode_special_tokens = bool(settings.get("split_special_tokens"))


def _token(value: Any, *, special: bool) -> AddedToken | None:
    """Return a token from a text or an object with `content`, or None for anything else; `special` forces that flag."""
    content = _content(value)
    if not content:
        return None
    if isinstance(value, str):
        return AddedToken(content, special=True)
    flags = {flag: bool(value[flag]) for flag in _TOKEN_FLAGS if flag in value}
    return AddedToken(content, **(flags | {"special": True} if special else flags))


def _items(value: Any) -> list[tuple[str, Any]]:
    """Return the items of an object, none of anything else."""
    return list(value.items()) if isinstance(value, dict) else []


def _content(value: Any) -> str:
    """Return the text of a token that is stored as a text or an object, empty for anything else."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _object(read: FileReader, name: str) -> dict[str, Any]:
    """Return a JSON object, empty when the file does not exist."""
    raw = read(name)
    if raw is None:
        return {}
    try:
        value = json.loads(_text(name, raw))
    except (ValueError, RecursionError) as error:
        raise _invalid(name, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid(name, f"a JSON {type(value).__name__} where an object is expected")
    return value


def _text(name: str, raw: bytes) -> str:
    """Return a file's text. Raises IntegrityError for a Git-LFS pointer in its place and for bytes that are not UTF-8."""
    if raw.startswith(LFS_SIGNATURE):
        raise IntegrityError(
            "LM-FILE-LFS-POINTER",
            "the file is a Git-LFS pointer, not the file itself",
            where={"file": name},
            hints=("in the repository folder run: git lfs install && git lfs pull",),
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(name, f"not UTF-8 at byte {error.start}") from None


def _invalid(name: str, why: str) -> IntegrityError:
    return IntegrityError("LM-TOKENIZER-INVALID", f"{name} is malformed", where={"file": name}, why=why)


def _missing(index: CheckpointIndex, read: FileReader) -> UsageError:
    """Say what there is instead of `tokenizer.json` and how to make one from it."""
    present = [name for name in CONVERTIBLE if read(name) is not None]
    convert = f"convert it once: transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) makes {TOKENIZER}"
    fetch = f"copy {TOKENIZER} from the model's repository into the folder"
    return UsageError(
        "LM-TOKENIZER-MISSING",
        f"the model folder has no {TOKENIZER}",
        where={"source": index.source},
        why=f"it has {' and '.join(present)}" if present else "it has no vocabulary of any kind",
        hints=(convert, fetch) if present else (fetch,),
    )
