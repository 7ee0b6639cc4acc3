#!/usr/bin/env bash
# Shows loadmaster on a small real model. Expects `loadmaster` and its Python first on PATH; `make demo` sees to that.
# Exits with an error unless the model says that Paris is the capital of France.
set -euo pipefail
cd "$(dirname "$0")/.."

question="What is the capital of France?"

heading() { printf '\n=== %s\n\n' "$1"; }
show() {
    printf '$ %s\n' "${*@Q}" >&2
    "$@"
}

model=$(python tools/fetch_demo_model.py)

heading "What the checkpoint holds, from headers alone"
show loadmaster inspect "$model"

heading "The plan for two ranks of unequal size (6 + 3 heads): every byte has a place before one is read"
show loadmaster plan "$model" --tp 2

heading "The load in two worker processes, the account per rank, and an answer"
answer=$(show loadmaster run "$model" --tp 2 --executor multiprocess --temperature 0 --max-tokens 32 --chat "$question")

printf '\n%s\n%s\n' "$question" "$answer"
if [[ $answer != *Paris* ]]; then
    echo "error: the answer does not name Paris" >&2
    exit 1
fi
