"""The host's tokenizer against transformers' own, on tokenizers trained here."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from checkpoints import POINTER, write_json
from loadmaster_hookspecs.errors import IntegrityError, UsageError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_plugins.transformers_models.tokenizer import CheckpointTokenizer, load_tokenizer

SENTENCES = [
    "The capital of France is Paris, and it doesn't rain.",
    "Numbers like 12 and 345 are split; user and assistant take turns.",
    "Grüße aus Köln! \u4f60\u597d \U0001f600",
]
TEXTS = [
    "The capital of France is",
    " leading and  double spaces , and it doesn ' t rain .",
    "Grüße \u4f60\u597d \U0001f600\n\ttabs",
    "<s>user<|end|>take turns</s>",
    "",
]
TEMPLATE = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- bos_token + '[default system]\\n' }}
    {%- endif %}
    {{- '[' + message['role'] + '] ' + message['content'] | trim + eos_token + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}[assistant] {% endif %}
"""
CONVERSATIONS = [
    [{"role": "user", "content": " What rains? "}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "12 and 345?"},
        {"role": "assistant", "content": "357 \u4f60"},
        {"role": "user", "content": "Thanks"},
    ],
]
Messages = Sequence[Mapping[str, str]]


def byte_level(path: Path) -> Tokenizer:
    """Train a byte-level BPE tokenizer whose post-processor puts <s> in front, and save it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(path / "tokenizer.json"))
    return tokenizer


def word_piece(path: Path) -> None:
    """Train a word-piece tokenizer: the kind whose decoded text needs its spaces cleaned up."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(path / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a byte-level tokenizer, its settings and a chat template."""
    byte_level(tmp_path)
    settings(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def settings(path: Path, **more: object) -> None:
    standard = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    write_json(path / "tokenizer_config.json", standard | more)


def load(path: Path) -> CheckpointTokenizer:
    index = CheckpointIndex(source=str(path), format="any", files=(), tensors={}, config={}, fingerprint="")
    return load_tokenizer(index, lambda name: (path / name).read_bytes() if (path / name).is_file() else None)


def reference(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def assert_equal(path: Path, conversations: Sequence[Messages] = CONVERSATIONS) -> CheckpointTokenizer:
    """Compare encoding, decoding and chat prompts with transformers; return our tokenizer."""
    ours, theirs = load(path), reference(path)
    for text in TEXTS:
        with_special = theirs(text)["input_ids"]
        assert ours.encode(text) == with_special
        assert ours.encode(text, special=False) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(with_special) == theirs.decode(with_special, skip_special_tokens=True)
    for messages in conversations:
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert ours.chat(messages) == expected
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ours.encode(expected, special=False) == ids
    return ours


class TestEqualsTransformers:
    def test_encoding_decoding_and_chat(self, folder: Path) -> None:
        ours = assert_equal(folder)
        assert ours.encode("The")[0] == 0
        assert ours.encode("The", special=False)[0] != 0
        assert ours.chat(CONVERSATIONS[0]) == "<s>[default system]\n[user] What rains?</s>\n[assistant] "

    @pytest.mark.parametrize("flags", [{"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
    def test_the_post_processor_decides_about_added_tokens(self, folder: Path, flags: dict[str, bool]) -> None:
        settings(folder, **flags)
        assert_equal(folder)

    def test_without_a_post_processor_nothing_is_added(self, folder: Path) -> None:
        document = json.loads((folder / "tokenizer.json").read_text())
        write_json(folder / "tokenizer.json", document | {"post_processor": None})
        settings(folder, add_bos_token=True)
        ours = assert_equal(folder)
        assert ours.encode("The") == ours.encode("The", special=False)

    @pytest.mark.parametrize("clean_up", [True, False])
    def test_clean_up_leaves_byte_level_text_alone(self, folder: Path, clean_up: bool) -> None:
        settings(folder, clean_up_tokenization_spaces=clean_up)
        ours = assert_equal(folder)
        assert ours.decode(ours.encode("doesn 't rain .")) == "doesn 't rain ."

    @pytest.mark.parametrize("clean_up", [True, False])
    def test_clean_up_of_word_pieces(self, tmp_path: Path, clean_up: bool) -> None:
        word_piece(tmp_path)
        settings(tmp_path, clean_up_tokenization_spaces=clean_up, unk_token="[UNK]")
        ours = assert_equal(tmp_path, [])
        assert ours.decode(ours.encode("It rain.")).endswith("rain." if clean_up else "rain .")

    def test_saved_truncation_and_padding_have_no_effect(self, folder: Path) -> None:
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.enable_truncation(3)
        backend.enable_padding(length=12)
        backend.save(str(folder / "tokenizer.json"))
        assert_equal(folder)

    def test_tokens_that_only_the_settings_know_get_the_same_ids(self, folder: Path) -> None:
        settings(
            folder,
            pad_token="<pad>",
            image_token="<image>",
            added_tokens_decoder={
                "0": {"content": "<s>", "special": True},
                "500": {"content": "<tool>", "special": False, "lstrip": True},
                "499": {"content": "<think>", "special": False},
                "501": {"content": "<pad>", "special": False},
            },
            additional_special_tokens=["<extra>", {"__type": "AddedToken", "content": "<other>", "special": True}],
        )
        ours, theirs = load(folder), reference(folder)
        text = "a <pad><image>b <tool> c<think>d<extra><other>"
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
        assert_equal(folder)

    def test_a_vocabulary_entry_that_is_named_special_is_skipped_when_decoding(self, folder: Path) -> None:
        settings(folder, pad_token="ca")
        assert_equal(folder)

    def test_the_older_special_tokens_map_is_read(self, folder: Path) -> None:
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"})
        write_json(
            folder / "special_tokens_map.json",
            {"eos_token": {"content": "<|end|>", "lstrip": False, "rstrip": False}, "unk_token": "</s>"},
        )
        assert "<|end|>\n" in assert_equal(folder).chat(CONVERSATIONS[0])

    def test_the_older_special_tokens_map_is_left_alone_when_the_settings_hold_all_tokens(self, folder: Path) -> None:
        settings(folder, added_tokens_decoder={"0": {"content": "<s>", "special": True}})
        write_json(folder / "special_tokens_map.json", {"eos_token": "<|end|>"})
        assert "</s>\n" in assert_equal(folder).chat(CONVERSATIONS[0])

    def test_special_tokens_as_objects_are_given_to_the_template(self, folder: Path) -> None:
        settings(folder, bos_token={"__type": "AddedToken", "content": "<s>", "special": True})
        assert assert_equal(folder).chat(CONVERSATIONS[0]).startswith("<s>[default")

    def test_split_special_tokens(self, folder: Path) -> None:
        settings(folder, split_special_tokens=True)
        ours = assert_equal(folder)
        assert len(ours.encode("<|end|>", special=False)) > 1

    def test_settings_are_optional(self, folder: Path) -> None:
        (folder / "tokenizer_config.json").unlink()
        ours = load(folder)
        assert ours.decode(ours.encode("The capital")) == "The capital"


class TestTemplates:
    def use(self, folder: Path, template: object) -> None:
        (folder / "chat_template.jinja").unlink()
        settings(folder, chat_template=template)

    def test_a_template_in_the_settings(self, folder: Path) -> None:
        self.use(folder, TEMPLATE)
        assert_equal(folder)

    def test_the_default_of_several_templates(self, folder: Path) -> None:
        self.use(folder, [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}])
        assert_equal(folder)

    def test_the_file_wins_over_the_settings(self, folder: Path) -> None:
        settings(folder, chat_template="no")
        assert "[user]" in assert_equal(folder).chat(CONVERSATIONS[0])

    @pytest.mark.parametrize(
        "template",
        [
            "{{ messages | tojson }} {{ messages | tojson(indent=2, sort_keys=True) }} {{ {'a<b': '\u00fc'} | tojson }}",
            "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "{% generation %}{{ messages[0].content }}{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}",
            "{{ tools is none }} {{ documents is none }} {{ nothing is defined }} {{ strftime_now('%Y') }}",
            "{% if messages[0].content is string %}  \n  {% set x = messages[0].role.upper() %}\n  {{ x }}\n{% endif %}\n",
        ],
    )
    def test_what_real_templates_use(self, folder: Path, template: str) -> None:
        self.use(folder, template)
        assert_equal(folder)

    def test_a_refusal_by_the_template_is_a_usage_error_with_its_words(self, folder: Path) -> None:
        self.use(folder, "{% if messages[0].role == 'system' %}{{ raise_exception('no system please') }}{% endif %}")
        with pytest.raises(UsageError, match="LM-CHAT-TEMPLATE") as caught:
            load(folder).chat(CONVERSATIONS[1])
        assert "no system please" in caught.value.report.why

    @pytest.mark.parametrize(
        "template",
        [
            "{% broken",
            "{{ messages.append(1) }}",
            "{{ ''.__class__.__mro__[1].__subclasses__()[0] }}",
            "{{ messages[0].content / 2 }}",
            "{{ undefined_thing.attribute }}",
            "{% include 'x' %}",
        ],
    )
    def test_broken_and_hostile_templates_fail_as_usage_errors(self, folder: Path, template: str) -> None:
        self.use(folder, template)
        ours = load(folder)
        assert ours.encode("The")
        with pytest.raises(UsageError, match="LM-CHAT-TEMPLATE"):
            ours.chat([{"role": "user", "content": "x"}])

    def test_token_names_cannot_displace_the_conversation(self, folder: Path) -> None:
        self.use(folder, "{{ messages[0].content }}")
        settings(folder, chat_template="{{ messages[0].content }}", extra_special_tokens={"messages": "<m>"})
        assert load(folder).chat([{"role": "user", "content": "x"}]) == "x"

    def test_no_template_and_no_message_are_usage_errors(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="LM-CHAT-EMPTY"):
            load(folder).chat([])
        self.use(folder, None)
        with pytest.raises(UsageError, match="LM-CHAT-NO-TEMPLATE"):
            load(folder).chat(CONVERSATIONS[0])


class TestFaults:
    @pytest.mark.parametrize(
        ("present", "why"),
        [
            (["tokenizer.model"], "it has tokenizer.model"),
            (["vocab.json", "merges.txt"], "it has vocab.json and merges.txt"),
            ([], "no vocabulary"),
        ],
    )
    def test_a_missing_file_says_what_there_is_and_what_to_do(self, tmp_path: Path, present: list[str], why: str) -> None:
        for name in present:
            (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UsageError, match="LM-TOKENIZER-MISSING") as caught:
            load(tmp_path)
        assert why in caught.value.report.why
        assert ("save_pretrained" in caught.value.hints[0]) == bool(present)

    @pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"model": {"type": "BPE"}}', b"[" * 10_000])
    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    def test_malformed_files_are_named(self, folder: Path, name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)
        if name == "tokenizer_config.json" and content.startswith(b"{"):
            assert load(folder).encode("The")
            return
        with pytest.raises(IntegrityError, match="LM-TOKENIZER-INVALID") as caught:
            load(folder)
        assert caught.value.report.where["file"] == name

    def test_odd_values_in_the_settings_are_passed_over(self, folder: Path) -> None:
        write_json(
            folder / "tokenizer_config.json",
            {
                "bos_token": 7,
                "eos_token": ["</s>"],
                "added_tokens_decoder": {"x": {}, "9" * 40: "<y>", "3": 5},
                "chat_template": 1,
            },
        )
        assert load(folder).encode("The")

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
    def test_git_lfs_pointers_are_recognised(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes(POINTER)
        with pytest.raises(IntegrityError, match="LM-FILE-LFS-POINTER"):
            load(folder)


def test_importing_it_stays_small_and_free_of_torch() -> None:
    code = (
        "import sys; import loadmaster_plugins.transformers_models.tokenizer;"
        "print(open('/proc/self/statm').read().split()[1], 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    pages, *heavy = run.stdout.split()
    assert heavy == ["False", "False"]
    assert int(pages) * resource.getpagesize() < 60_000_000
