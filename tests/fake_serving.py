"""A serving engine without a model: its answers follow from prompt, seed and position, so tests can tell what must come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from fake_adapters import FakeAdapters
from fake_api import sample_report
from loadmaster.serving.types import Delta, EngineStats, FinishReason, SamplingParams, TokenLogprob
from loadmaster_hookspecs.errors import UsageError

VOCABULARY = 0x110000


class FakeTokenizer:
    """One token per character; its id is the character's code point."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        if messages[-1]["role"] == "assistant":
            raise UsageError("LM-CHAT-TEMPLATE", "the template refuses the conversation", why="the last turn is not a user's")
        return "".join(f"{turn['role']}={turn['content']}\n" for turn in messages)


def expected_text(prompt: Sequence[int], length: int, seed: int | None = None, shift: int = 0) -> str:
    """Return what the fake engine answers: letters that depend on prompt, seed, position and the adapter's shift."""
    return "".join(chr(97 + (sum(prompt) + (seed or 0) * 5 + place * place * 3 + shift) % 26) for place in range(length))


class FakeServingEngine:
    """Answers at once, or one token every `step` seconds. Records the parameters of every request in `asked`."""

    def __init__(
        self,
        path: str = "",
        *,
        step: float = 0.0,
        max_model_len: int = 256,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.path, self.settings, self.options = path, dict(settings or {}), options
        self.model = SimpleNamespace(report=sample_report())
        self.tokenizer = FakeTokenizer()
        self.adapters = FakeAdapters(options.get("adapters", {}) if options.get("adapter_mode") != "merged" else {})
        self.max_model_len = max_model_len
        self.step = step
        self.asked: list[SamplingParams] = []
        self.alive = True
        self.fail_at = -1
        self.running = self.done = self.failed = self.cancelled = self.prompt_tokens = self.generated = 0
        self.drained: list[float] = []
        self.closed = 0
        self.first_token: list[float] = []

    async def generate(self, prompt: Sequence[int], params: SamplingParams, *, adapter: str = "") -> AsyncIterator[Delta]:
        if max(prompt) >= VOCABULARY:
            raise UsageError("LM-USAGE-PROMPT", "a token id is not in the vocabulary", why=f"the largest is {max(prompt)}")
        with self.adapters.using(adapter, len(prompt)) as shift:
            self.asked.append(params)
            self.running += 1
            self.prompt_tokens += len(prompt)
            outcome: FinishReason = "cancelled"
            try:
                async for delta in self._deltas(prompt, params, shift):
                    outcome = delta.finish_reason or outcome
                    yield delta
            finally:
                self.running -= 1
                self.done += outcome in ("stop", "length")
                self.failed += outcome == "error"
                self.cancelled += outcome == "cancelled"

    async def _deltas(self, prompt: Sequence[int], params: SamplingParams, shift: int) -> AsyncIterator[Delta]:
        text = expected_text(prompt, params.max_tokens, params.seed, shift)
        ends = [text.index(stop) for stop in params.stop if stop in text]
        text, reason = (text[: min(ends)], "stop") if ends else (text, "length")
        self.first_token.append(0.25)
        for place, character in enumerate(text):
            await asyncio.sleep(self.step)
            if self.closed:
                yield Delta(finish_reason="cancelled", prompt_tokens=len(prompt))
                return
            if place == self.fail_at:
                yield Delta(finish_reason="error", error="rank 1 died", prompt_tokens=len(prompt))
                return
            self.generated += 1
            yield Delta(ids=(ord(character),), text=character, logprobs=_logprobs(character, params.logprobs))
        finish: FinishReason = "stop" if reason == "stop" else "length"
        yield Delta(finish_reason=finish, prompt_tokens=len(prompt), cached_tokens=len(prompt) // 4)

    def stats(self) -> EngineStats:
        told, self.first_token = tuple(self.first_token), []
        return EngineStats(
            stage="serve",
            alive=self.alive,
            last_step_age=0.5,
            running=self.running,
            waiting=3,
            requests_done=self.done,
            requests_failed=self.failed,
            requests_cancelled=self.cancelled,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated,
            cached_tokens=self.prompt_tokens // 4,
            preemptions=2,
            kv_blocks_used=5,
            kv_blocks_total=20,
            first_token_seconds=told,
            adapters=self.adapters.stats(),
        )

    async def drain(self, timeout: float) -> bool:
        self.drained.append(timeout)
        return not self.running

    async def close(self) -> None:
        self.closed += 1
        await asyncio.sleep(2 * self.step)


def _logprobs(character: str, asked: int | None) -> tuple[TokenLogprob, ...]:
    """The chosen token has -0.5, the alternatives -1, -2, ... and the last of five minus infinity."""
    if asked is None:
        return ()
    others = [(ord("A") + place, chr(ord("A") + place), -1.0 - place if place < 4 else -float("inf")) for place in range(asked)]
    return (TokenLogprob(id=ord(character), text=character, logprob=-0.5, top=tuple(others)),)
