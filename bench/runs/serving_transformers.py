"""transformers' own continuous batching, `generate_batch`, which makes its manager anew with every call."""

from __future__ import annotations

from bench.runs.process_memory import own_memory
from bench.runs.serving_workload import Prompts, measure, parser
from bench.runs.stopwatch import Stopwatch, report

PAGE = 16
"""Tokens in a block of keys and values, as the others have them."""


def main() -> None:
    """Load, serve, report."""
    options = parser().parse_args()
    stopwatch = Stopwatch()

    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    stopwatch.mark("imported")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.train(False)
    stopwatch.mark("loaded")
    longest = max(options.first) + options.answer
    settings = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=max(options.batches) * -(-longest // PAGE),
        max_batch_tokens=512,
        max_requests_per_batch=max(options.batches),
        allow_block_sharing=False,
    )

    def serve(prompts: Prompts, tokens: int) -> list[list[int]]:
        # No token has the number -1, so answers end by their length only.
        wanted = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        with torch.inference_mode():
            answers = model.generate_batch(
                inputs=prompts, generation_config=wanted, continuous_batching_config=settings, max_new_tokens=tokens
            )
        by_prompt = {tuple(answer.prompt_ids): [*answer.generated_tokens] for answer in answers.values()}
        return [by_prompt[tuple(prompt)] for prompt in prompts]

    detail, tokens = measure(serve, options)
    nbytes = sum(file.stat().st_size for file in options.model.glob("*.safetensors"))
    report(stopwatch.seconds, nbytes=nbytes, memory=own_memory(), detail=detail, tokens=tokens)


if __name__ == "__main__":
    main()
