"""One request on its way through the engine: its sequence, its text, and what of it is told next."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadmaster.adapters.uses import BASE, Use
from loadmaster.completion import undrawable
from loadmaster.serving.text import Detokeniser, StopTexts
from loadmaster.serving.types import Delta, FinishReason, SamplingParams, TokenLogprob
from loadmaster_engine.serve.messages import DrawnToken
from loadmaster_engine.serve.sequence import Ending, Sequence
from loadmaster_hookspecs.errors import render
from loadmaster_hookspecs.models import Tokenizer


class Answer:
    """Used by the thread that steps. `tell` hands deltas over and never waits. `use` is held until the answer has ended."""

    def __init__(
        self,
        sequence: Sequence,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        tell: Callable[[Delta], None],
        *,
        adapter: str = "",
        use: Use = BASE,
    ) -> None:
        self.sequence = sequence
        self.adapter = adapter
        self.use = use
        self.begun = time.monotonic()
        self.first_token_seconds: float | None = None
        self._params = params
        self._tokenizer = tokenizer
        self._text = Detokeniser(tokenizer) if tokenizer else None
        self._stops = StopTexts(params.stop)
        self._tell = tell

    def take(self, token: DrawnToken, ending: Ending | None) -> FinishReason | None:
        """Tell what a token adds. Returns why the answer ends with it, by the scheduler's word or by a stop text."""
        if ending == "error":
            self.end("error", render(undrawable(adapter=self.adapter, token=self.sequence.answered).report))
            return "error"
        if self.first_token_seconds is None:
            self.first_token_seconds = time.monotonic() - self.begun
        if ending == "stop":
            # The token that ends an answer is no part of it.
            self.end("stop")
            return "stop"
        text = self._stops.add(self._text.add(token.id)) if self._text else ""
        logprobs = () if self._params.logprobs is None else (self._logprob(token),)
        if self._stops.found:
            self._send(Delta(ids=(token.id,), text=text, logprobs=logprobs, finish_reason="stop"))
            return "stop"
        if ending:
            text += self._rest()
            self._send(
                Delta(ids=(token.id,), text=text, logprobs=logprobs, finish_reason="stop" if self._stops.found else ending)
            )
        else:
            self._send(Delta(ids=(token.id,), text=text, logprobs=logprobs))
        return ending

    def end(self, reason: FinishReason, error: str = "") -> None:
        """Tell that the answer ends without another token."""
        self._send(Delta(text=self._rest(), finish_reason=reason, error=error))

    def _rest(self) -> str:
        text = self._stops.add(self._text.rest()) if self._text else ""
        return text if self._stops.found else text + self._stops.rest()

    def _send(self, delta: Delta) -> None:
        self._tell(
            Delta(
                ids=delta.ids,
                text=delta.text,
                logprobs=delta.logprobs,
                finish_reason=delta.finish_reason,
                error=delta.error,
                prompt_tokens=len(self.sequence.prompt),
                cached_tokens=self.sequence.cached,
            )
        )

    def _logprob(self, token: DrawnToken) -> TokenLogprob:
        top = tuple((number, self._word(number), logprob) for number, logprob in token.top)
        return TokenLogprob(id=token.id, text=self._word(token.id), logprob=token.logprob, top=top)

    def _word(self, token: int) -> str:
        return self._tokenizer.decode([token]) if self._tokenizer else ""
