#!/usr/bin/env bash
# Shows loadmaster on a small real model: demo.sh [gptq|awq] for one that auto-gptq or autoawq has quantised to 4 bits.
# Expects `loadmaster` and its Python first on PATH; `make demo`, `make demo-gptq` and `make demo-awq` see to that.
# Exits with an error unless the model says that Paris is the capital of France.
set -euo pipefail
cd "$(dirname "$0")/.."

# The likeliest first token is far ahead of the next one: rounding in bfloat16 or 4 bits does not decide.
question="Name the capital of France."

heading() { printf '\n=== %s\n\n' "$1"; }

# Prints the command line that follows, words with blanks in quotes.
tell() {
    local word
    printf '$'
    for word; do
        [[ $word == *" "* ]] && word="\"$word\""
        printf ' %s' "$word"
    done
    printf '\n'
}

case ${1:-} in
    "") model=$(python tools/fetch_demo_model.py) ;;
    gptq | awq) model=$(python -m conformance.demo_model "$1") ;;
    *)
        echo "usage: tools/demo.sh [gptq|awq]" >&2
        exit 2
        ;;
esac

heading "What the checkpoint holds, from headers alone"
command=(loadmaster inspect "$model")
tell "${command[@]}"
"${command[@]}"

heading "The plan for two ranks of unequal size (6 + 3 heads): every byte has a place before one is read"
command=(loadmaster plan "$model" --tp 2)
tell "${command[@]}"
"${command[@]}"

heading "The load in two worker processes, the account per rank, and an answer"
command=(loadmaster run "$model" --tp 2 --executor multiprocess --temperature 0 --max-tokens 32 --chat "$question")
tell "${command[@]}"
answer=$("${command[@]}")

printf '\n%s\n%s\n' "$question" "$answer"
if [[ $answer != *Paris* ]]; then
    echo "error: the answer does not name Paris" >&2
    exit 1
fi

# The adapter was trained on the model as it is, so the quantised ones are shown without it.
if [[ -z ${1:-} ]]; then
    heading "An adapter comes while the model is served, and goes again: the answer changes, and changes back"
    command=(python tools/demo_adapter.py "$model")
    tell "${command[@]}"
    "${command[@]}"
fi
