"""Text as tokens come in: characters are whole, and nothing of a stop text gets out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from loadmaster.serving.text import Detokeniser, StopTexts


class Bytes:
    """A tokenizer whose tokens are bytes, so that most characters take several."""

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self._backend = Backend(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
        self._backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._backend.decoder = decoders.ByteLevel()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(ids))
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        raise NotImplementedError


BYTES = Bytes()


class Words:
    """A tokenizer that joins words with spaces, which belong to the word after them."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(f"w{token}" for token in ids)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        raise NotImplementedError


@given(st.text(max_size=30))
def test_pieces_are_the_whole(text: str) -> None:
    detokeniser = Detokeniser(BYTES)
    pieces = [detokeniser.add(token) for token in BYTES.encode(text)]
    assert "".join(pieces) + detokeniser.rest() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_characters_do_not_hold_up_what_follows(ids: list[int]) -> None:
    detokeniser = Detokeniser(BYTES)
    told = "".join(detokeniser.add(token) for token in [*ids, *BYTES.encode(" and on we go, on and on")])
    assert (told + detokeniser.rest()).endswith(" and on we go, on and on")
    assert told.endswith("on we go, on and on")


def test_spaces_between_words_are_kept() -> None:
    detokeniser = Detokeniser(Words())
    assert [detokeniser.add(token) for token in (1, 2, 3)] == ["w1", " w2", " w3"]


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.data())
def test_text_ends_before_the_first_stop_text(text: str, stops: list[str], data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stopper = StopTexts(stops)
    told = ""
    for begin, end in itertools.pairwise([0, *places, len(text)]):
        told += stopper.add(text[begin:end])
        assert not any(stop in told for stop in stops)
        if stopper.found:
            break
    if not stopper.found:
        assert told + stopper.rest() == text
        assert not any(stop in text for stop in stops)
    else:
        assert any(text.startswith(told + stop) for stop in stops)


def test_only_what_may_become_a_stop_text_is_held_back() -> None:
    stopper = StopTexts(["END"])
    assert stopper.add("the EN") == "the "
    assert stopper.add("Dive") == ""
    assert stopper.found
    stopper = StopTexts(["END"])
    assert stopper.add("the EN") == "the "
    assert stopper.add("TRY") == "ENTRY"
