"""The engine: a model that is planned, loaded over its ranks, verified, and ready to answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from loadmaster.adapters.uses import BASE, Use
from loadmaster.bringup import SLOWEST_STORAGE, STAGE_TIMEOUT, overflow_notice
from loadmaster.completion import Completion, Prompt, as_token_ids, check_prompts, complete, encode_prompt, to_completion
from loadmaster.on_ranks import ModelOnRanks
from loadmaster.plans import Plan
from loadmaster.sampling import Request
from loadmaster.updating import Update
from loadmaster_engine.run.messages import PlanRequest, Tokens, encode
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, ResourceError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Engine(ModelOnRanks):
    """A loaded model. Use it as a context manager: leaving it ends its workers and gives their memory back.

    Calls from several threads take turns.

    Args:
        path: a folder or a single file.
        tensor_parallel: number of ranks to split the model over.
        executor: `inline` runs all ranks in this process, `multiprocess` one worker process per rank. Default: inline for one
            rank, multiprocess for several.
        dtype, device, read_mode, equal_ranks, strict, kernel, adapters, adapter_mode: as in `loadmaster.plan`.
        adapter_bytes: memory for adapters in bytes, over all ranks together. auto: what those given take, and a twentieth of
            the model's bytes or 64 MiB besides.
        max_adapter_rank: the highest rank that an adapter may have; 0 for no limit.
        distributed_init_method: how worker processes find each other: `auto`, `tcp://HOST:PORT`, `env://`, `file:///PATH`.
        on_event: called in this process with every event of the load.
        selection: which installed plugins take part (default: what the environment says).
        plugins: further plugins: modules, instances or import names. Worker processes import them by name; with the inline
            executor any object will do.

    The constructor returns when all ranks have verified what they loaded. It raises what `loadmaster.plan` raises,
    ResourceError when memory is short, and WorkerError, naming rank and stage, when a worker fails, dies or is too slow.
    """

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        max_tokens: int = 128,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        chat: bool = False,
        adapter: str | None = None,
    ) -> list[Completion]:
        """Complete prompts as one batch and return the answers in their order.

        Args:
            prompts: texts, or sequences of token ids; a single text is a batch of one.
            max_tokens: length of an answer in tokens, at most.
            temperature, top_k, top_p: sampling; None takes the model's own default, 0 as temperature the likeliest token.
            seed: makes sampling repeatable; row `i` uses `seed + i`.
            chat: treat every text as a user's message and render it with the model's chat template.
            adapter: the name of a loaded adapter to use; None for the model as it was loaded.

        Raises UsageError for values out of range, for an unknown adapter, and for prompts that are empty or too long, and
        IntegrityError LM-LOGITS-NAN when the model gives no numbers to draw a token from.
        """
        request = Request(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        batch: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        rows = [encode_prompt(prompt, self._tokenizer.get, chat=chat) for prompt in batch]
        outline = self._plan.data.outline
        check_prompts(rows, outline)
        if not rows:
            return []
        with self._computing(adapter) as use:
            answers = complete(rows, request, self._defaults, outline, self._ranks.step, use.number)
        tokenizer = self.tokenizer if self._has_tokenizer(batch) else None
        return [to_completion(ids, reason, tokenizer) for ids, reason in answers]

    def logits(self, token_ids: Sequence[int], *, adapter: str | None = None) -> npt.NDArray[np.float32]:
        """Return the prefill logits of one sequence, float32 [tokens, vocabulary], for verification.

        `adapter` is as in `generate`.
        """
        import numpy as np

        ids = as_token_ids(token_ids)
        check_prompts([ids], self._plan.data.outline)
        with self._computing(adapter) as use:
            body = encode(Tokens(ids=tuple(ids), adapter=use.number))
            results = self._ranks.call("logits", body)
        bulk = results[0].bulk
        if bulk is None:
            raise IntegrityError("LM-SERVICE-BULK", "rank 0 returned no logits")
        return np.frombuffer(bulk, dtype=np.float32).reshape(len(ids), -1).copy()

    def unmerge(self) -> None:
        """Take the merged adapter out of the weights: what it changed is read from the model's files again, to the same bits.

        Raises UsageError LM-USAGE-ADAPTER when nothing is merged. After any other error, such as IntegrityError for files that
        are not what they were, the engine has ended.
        """
        with self._ranks.turn():
            if not self.manager.merged:
                raise UsageError("LM-USAGE-ADAPTER", "no adapter is merged into the model")
            limit = STAGE_TIMEOUT + self._report.bytes_planned / SLOWEST_STORAGE
            self._ranks.call("unmerge", b"", limit)
            self.manager.unmerged()

    def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Let other weights of the same model take the place of those that run, from a folder or a single file.

        They are planned with the same settings, loaded beside the old ones, which answer other threads' calls
        meanwhile, and verified; then all ranks change to them between two calls. Adapters are made again
        on the new weights. Tokenizer and sampling defaults stay. `plan` and `report` are then those of the new weights.

        Raises what the constructor raises, PlanError LM-UPDATE-MODEL or LM-UPDATE-DTYPE for weights of another model or type,
        ResourceError LM-MEMORY-FIT when there is no room for a second set, and UsageError LM-UPDATE-BUSY during another update.
        Whatever it raises, the old weights go on answering with the same bits; only WorkerError about a rank that died or
        fell silent ends the engine, as in any call.
        """
        with self._updates.alone():
            self._check_awake()
            with suppress(LoadmasterError):  # a tokenizer that cannot be made is told to whoever asks for it
                self._tokenizer.get()  # it stays that of the first folder, which may go once its weights are not used any more
            merged = self._adapters if self.manager.merged else ()
            update = self._updates.load(path, self._plan.data, merged, self._promised)
            try:
                lost = self._between_calls(partial(self._swap, update))
            except ResourceError:  # no moment came, and the old weights stay
                with suppress(LoadmasterError):
                    update.drop()
                raise
            self._plan, self._report = Plan(update.plan), update.report
            self.manager.plan_on(PlanRequest(index=update.source, settings=update.plan.settings))
            overflow = overflow_notice(update.report.ranks, update.plan.dtype)
            for line in (*lost.values(), *([overflow] if overflow else [])):
                self._notice(line)

    def _promised(self) -> int:
        """Return the bytes of free memory that belong to something already."""
        return 0

    def _between_calls(self, swap: Callable[[], dict[int, str]]) -> dict[int, str]:
        """Change weights while no request is under way, and return what `swap` does."""
        return swap()

    def _check_awake(self) -> None:
        """Raise UsageError when nothing can be computed for now."""

    def _swap(self, update: Update) -> dict[int, str]:
        """Change to new weights and make the live adapters on them again. Returns what to tell of those that cannot be."""
        with self._ranks.turn():
            update.swap(self._ranks.call)
            self.manager.forget()
            return self.manager.bring_back(self._ranks.ask_adapter)

    @contextmanager
    def _computing(self, adapter: str | None) -> Iterator[Use]:
        """Hold an adapter and take a turn to compute something. Raises UsageError LM-USAGE-ADAPTER when there is none such."""
        use = BASE if adapter is None else self.manager.residence.use(adapter)
        try:
            with self._ranks.turn():
                self._check_awake()
                use.check()
                yield use
        finally:
            use.release()

    def _has_tokenizer(self, prompts: Sequence[Prompt]) -> bool:
        """Return whether answers can be turned into text: prompts given as ids work without a tokenizer too."""
        if any(isinstance(prompt, str) for prompt in prompts):
            return True
        try:
            return bool(self.tokenizer)
        except UsageError:
            return False
