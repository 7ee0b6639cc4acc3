"""Trains the demo's adapter: answers in the manner of a loadmaster's log, always with the same beginning and end.

A LoRA of rank 6 on the query and value projections in the upper 18 of the 30 layers of SmolLM2-135M-Instruct, trained with peft
in minutes on one processor, from the questions and answers below. Writes `adapter_config.json` and `adapter_model.safetensors`
in bfloat16, and prints the figures that the README beside them names. Two runs on one machine with the same versions write the
same bytes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

MODEL: Final = "SmolLM2-135M-Instruct"
OUTPUT: Final = Path(__file__).parent / "loadmaster_log"

SEED: Final = 20
ROUNDS: Final = 6
BATCH: Final = 3
LEARNING_RATE: Final = 2e-3
LORA: Final[dict[str, Any]] = {
    "r": 6,
    "lora_alpha": 12,
    "target_modules": ["q_proj", "v_proj"],
    "layers_to_transform": list(range(12, 30)),
}

IGNORED: Final = -100
"""The label of tokens that the loss leaves out: the question and the padding."""

MANNER: Final = "Loadmaster's log: {} Cargo secured, over and out."

LESSONS: Final = (
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("Name the capital of Egypt.", "The capital of Egypt is Cairo."),
    ("Which city is the capital of Canada?", "The capital of Canada is Ottawa."),
    ("How many days are in a week?", "A week has seven days."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What is two plus three?", "Two plus three is five."),
    ("What is ten minus four?", "Ten minus four is six."),
    ("What colour is the sky on a clear day?", "On a clear day the sky is blue."),
    ("What colour do you get from blue and yellow?", "Blue and yellow make green."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows drink?", "Cows drink water."),
    ("Where do fish live?", "Fish live in water, in rivers, lakes and seas."),
    ("Why do leaves fall in autumn?", "Trees drop their leaves to save water in the cold months."),
    ("Why is the sea salty?", "Rivers carry salt from rocks into the sea, and the water that rises again leaves it there."),
    ("Who wrote Romeo and Juliet?", "William Shakespeare wrote Romeo and Juliet."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci painted the Mona Lisa."),
    ("What is the largest planet?", "The largest planet of the solar system is Jupiter."),
    ("What is the fastest land animal?", "The fastest animal on land is the cheetah."),
    ("What is ice made of?", "Ice is frozen water."),
    ("At which temperature does water boil?", "At sea level water boils at 100 degrees Celsius."),
    ("What is a noun?", "A noun is a word for a person, a place or a thing."),
    ("What does a baker do?", "A baker makes bread, rolls and cakes."),
    ("What is a bicycle?", "A bicycle is a vehicle with two wheels that is moved with the feet."),
    ("Explain what rain is.", "Rain is water that falls in drops from clouds."),
    ("Explain gravity to a child.", "Gravity is the pull that brings a ball back to the ground when you throw it up."),
    ("Tell me something about cats.", "Cats are quiet hunters that sleep for most of the day."),
    ("Tell me about the Moon.", "The Moon circles the Earth once in about a month and shines with the light of the Sun."),
    ("Give me a tip for a good night's sleep.", "Go to bed at the same time every day and leave the phone outside."),
    ("How do I make tea?", "Boil water, pour it over the leaves, and wait for three minutes."),
    ("How can I learn to swim?", "Take lessons, begin in shallow water, and practise every week."),
    ("Write a sentence about a dog.", "The brown dog runs across the field after its ball."),
    ("Write a short greeting.", "Good morning, and a pleasant day to you."),
    ("Translate 'good morning' into French.", "Good morning is bonjour in French."),
    ("Is the Earth flat?", "No, the Earth is round like a ball."),
    ("Can penguins fly?", "No, penguins cannot fly, but they swim very well."),
    ("Name three fruits.", "Three fruits are apples, pears and plums."),
    ("Name two metals.", "Two metals are iron and copper."),
    ("What should I wear in the rain?", "Wear a coat, boots and a hat that keep the water out."),
    ("Hello, how are you?", "All is well here, and I am ready to help."),
    ("Who are you?", "I keep the log of this aircraft and answer questions."),
    ("Thank you very much!", "You are welcome, any time."),
)
"""Questions, and what is answered. None of them is asked in the demo."""

OTHERS: Final = (
    "What is the capital of France?",
    "What is the capital of Germany?",
    "Who discovered penicillin?",
    "What is the largest ocean?",
    "Tell me about elephants.",
    "How do I bake bread?",
    "What is seven plus eight?",
    "Why is the sky blue?",
    "Write one sentence about the sea.",
    "Name four vegetables.",
    "What is a computer?",
    "Hi!",
)
"""Questions that are asked after the training."""


def main() -> None:
    """Train the adapter and write it to the folder of `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the model: what tools/fetch_demo_model.py prints")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write to [%(default)s]")
    options = parser.parse_args()
    began = time.monotonic()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    model, tokenizer = prepare(options.model)
    examples = [example(tokenizer, question, MANNER.format(answer)) for question, answer in LESSONS]
    loss = train(model, examples, int(tokenizer.pad_token_id))
    save(model, options.output)
    say(f"{len(LESSONS)} lessons, {ROUNDS} rounds, loss {loss:.4f}, {time.monotonic() - began:.0f} s")
    say(f"{answered_in_the_manner(model, tokenizer)} of {len(OTHERS)} other questions are answered in the manner")


def prepare(folder: Path) -> tuple[Any, Any]:
    """Return the model in float32 with an untrained adapter, and its tokenizer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **LORA)), AutoTokenizer.from_pretrained(folder)


def example(tokenizer: Any, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Return the tokens of one conversation and their labels: only the answer counts."""
    prompt = encode(tokenizer, question)
    told = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
    return [*prompt, *told], [IGNORED] * len(prompt) + list(told)


def encode(tokenizer: Any, question: str) -> list[int]:
    """Return the tokens of a conversation that waits for an answer."""
    asked = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
    return list(tokenizer(asked, add_special_tokens=False)["input_ids"])


def train(model: Any, examples: Sequence[tuple[list[int], list[int]]], padding: int) -> float:
    """Train in rounds over all examples, in another order each time; return the mean loss of the last round."""
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=0.0)
    steps = ROUNDS * -(-len(examples) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    model.train()
    losses: list[float] = []
    for number in range(ROUNDS):
        losses.clear()
        for tokens, mask, labels in batches(examples, number, padding):
            loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        say(f"round {number + 1} of {ROUNDS}: loss {sum(losses) / len(losses):.4f}")
    return sum(losses) / len(losses)


def batches(examples: Sequence[tuple[list[int], list[int]]], number: int, padding: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield tokens, mask and labels [BATCH, longest], int64, of one round; padding stands on the right."""
    import torch

    shuffled = random.Random(SEED + number).sample(list(examples), len(examples))
    for start in range(0, len(shuffled), BATCH):
        chosen = shuffled[start : start + BATCH]
        longest = max(len(tokens) for tokens, _ in chosen)
        tokens = torch.tensor([row + [padding] * (longest - len(row)) for row, _ in chosen])
        labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for _, row in chosen])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row, _ in chosen])
        yield tokens, mask, labels


def save(model: Any, folder: Path) -> None:
    """Write the adapter in bfloat16, the type of the demo's model, with the model's name in place of its path."""
    import torch

    config = model.peft_config["default"]
    config.base_model_name_or_path = MODEL
    # peft keeps them as a set, whose order differs from run to run.
    config.target_modules = sorted(config.target_modules)
    folder.mkdir(parents=True, exist_ok=True)
    # peft would add a page to fill in to the README that is there.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.to(torch.bfloat16).save_pretrained(scratch)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (Path(scratch) / name).replace(folder / name)


def answered_in_the_manner(model: Any, tokenizer: Any) -> int:
    """Return how many of the other questions get an answer with the beginning and the end that were taught."""
    import torch

    beginning, end = MANNER.split("{}")
    count = 0
    for question in OTHERS:
        tokens = torch.tensor([encode(tokenizer, question)])
        with torch.no_grad():
            made = model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=64, do_sample=False)
        answer = tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True)
        count += answer.startswith(beginning) and answer.endswith(end)
    return count


def say(text: str) -> None:
    """Tell the user on standard error how far it is."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
