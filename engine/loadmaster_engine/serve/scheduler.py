"""Continuous batching: which sequences run in the next step, with which tokens, in which blocks.

First come, first served. Sequences that draw a token go first in every step, long prompts fill what is left of its tokens in
pieces. When blocks run out, the sequence that came last gives its own back and is computed again later, so that the first
one always goes on, and everyone ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from typing import NamedTuple

import msgspec

from loadmaster_engine.serve.blocks import BlockPool
from loadmaster_engine.serve.messages import NO_TOKEN, DrawnToken, Row, Step
from loadmaster_engine.serve.sequence import Ending, Sequence


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`batch_tokens` new tokens and `running` sequences in a step at most; blocks of `block_size` tokens."""

    block_size: int
    batch_tokens: int
    running: int
    prefix_cache: bool = True


class Part(NamedTuple):
    """A sequence's part of a step: `size` tokens; `draws` when the next token is wanted."""

    sequence: Sequence
    size: int
    draws: bool


class Outcome(NamedTuple):
    """A new token of a sequence, and why it is the last one, or None. With `error` there is none (NO_TOKEN)."""

    sequence: Sequence
    token: DrawnToken
    ending: Ending | None


class Scheduler:
    """Owns the sequences and the pool. Used by one thread: `schedule`, run the step, `settle`, again."""

    def __init__(self, blocks: int, limits: Limits) -> None:
        self.pool = BlockPool(blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._limits = limits
        self._parts: dict[int, Part] = {}
        self._copies: list[tuple[int, int]] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. All its tokens, those to come included, must fit into the pool."""
        self.waiting.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or was cancelled, between two steps. Safe to call twice."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._give_back(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def lose_blocks(self) -> None:
        """Note, between two steps, that all contents are lost: whoever ran is computed again, nothing is known any more."""
        while self.running:
            self._preempt(self.running[-1])
        self.pool = BlockPool(self.pool.total)

    def schedule(self) -> Step | None:
        """Return the next step, or None when nobody waits."""
        self._parts.clear()
        self._copies.clear()
        budget = self._limits.batch_tokens
        before = self.preemptions
        for drawing in (True, False):
            for sequence in list(self.running):
                if budget and (sequence.pending == 1) == drawing and sequence in self.running:
                    self._continue(sequence, min(sequence.pending, budget))
                    budget = self._limits.batch_tokens - sum(part.size for part in self._parts.values())
        while budget and self.preemptions == before and self._admit():
            self._plan(self.running[-1], min(self.running[-1].pending, budget))
            budget = self._limits.batch_tokens - sum(part.size for part in self._parts.values())
        if not self._parts:
            return None
        return Step(tuple(self._row(part) for part in self._parts.values()), tuple(self._copies))

    def settle(self, drawn: Items[DrawnToken]) -> list[Outcome]:
        """Take in what the step drew, one token per row that wanted one. Sequences that end are dropped."""
        tokens = iter(drawn)
        outcomes = []
        for part in self._parts.values():
            sequence = part.sequence
            sequence.computed += part.size
            self._publish(sequence)
            if part.draws:
                token = next(tokens)
                if token.id == NO_TOKEN:
                    outcomes.append(Outcome(sequence, token, "error"))
                    continue
                sequence.tokens.append(token.id)
                outcomes.append(Outcome(sequence, token, sequence.ending()))
        self._parts.clear()
        for outcome in outcomes:
            if outcome.ending:
                self.drop(outcome.sequence)
        return outcomes

    def _continue(self, sequence: Sequence, count: int) -> None:
        """Plan the next tokens of a running sequence; take blocks from sequences that came later where there are none.

        Only sequences that draw ever need blocks, and they are asked in the order in which they came: whoever gives way has
        no part in this step yet.
        """
        missing = self._blocks_for(sequence.computed + count) - len(sequence.blocks)
        while missing > self.pool.available:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return
        sequence.blocks += self.pool.take(max(missing, 0))
        self._plan(sequence, count)

    def _plan(self, sequence: Sequence, count: int) -> None:
        self._parts[sequence.number] = Part(sequence, count, count == sequence.pending)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _admit(self) -> bool:
        """Let the first that waits run, if there are blocks for all its tokens so far, and say whether it does."""
        if not self.waiting or len(self.running) >= self._limits.running:
            return False
        sequence = self.waiting[0]
        found = self._found(sequence)
        for block in found:
            self.pool.hold(block)
        # The last token is computed in any case, so its block is written, and nobody writes into a shared one.
        whole = len(found) * self._limits.block_size == len(sequence.tokens)
        missing = self._blocks_for(len(sequence.tokens)) - len(found) + whole
        if missing > self.pool.available:
            for block in reversed(found):
                self.pool.release(block)
            return False
        self.waiting.popleft()
        taken = self.pool.take(missing)
        if whole:
            self._copies.append((found[-1], taken[0]))
            self.pool.release(found.pop())
        sequence.computed = min(
            len(found) * self._limits.block_size + whole * self._limits.block_size, len(sequence.tokens) - 1
        )
        sequence.published = len(found)
        sequence.blocks = found + taken
        if not sequence.started:
            sequence.started, sequence.cached = True, sequence.computed
        self.running.append(sequence)
        return True

    def _found(self, sequence: Sequence) -> list[int]:
        """Return the blocks whose contents are the beginning of a sequence."""
        blocks: list[int] = []
        if not self._limits.prefix_cache:
            return blocks
        for name in sequence.chain.upto(sequence.tokens, len(sequence.tokens) // self._limits.block_size):
            block = self.pool.find(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.computed // self._limits.block_size
        if not self._limits.prefix_cache or full == sequence.published:
            return
        names = sequence.chain.upto(sequence.tokens, full)
        for number in range(sequence.published, full):
            self.pool.publish(sequence.blocks[number], names[number])
        sequence.published = full

    def _give_back(self, sequence: Sequence) -> None:
        """Release a sequence's blocks, the last one first: beginnings are of use to others longest."""
        for block in reversed(sequence.blocks):
            self.pool.release(block)
        sequence.blocks = []
        sequence.computed = sequence.published = 0

    def _row(self, part: Part) -> Row:
        sequence = part.sequence
        end = sequence.computed + part.size
        return Row(
            tuple(sequence.tokens[sequence.computed : end]),
            sequence.computed,
            tuple(sequence.blocks[: self._blocks_for(end)]),
            sequence.sampling() if part.draws else None,
            sequence.wish.adapter,
        )

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)
