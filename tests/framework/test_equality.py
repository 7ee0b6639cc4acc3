"""Logits at any tensor-parallel size equal transformers' own in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loadmaster as lm
from tiny_models import FAMILIES, IDS, make_model, reference_logits, relative_error, save_model

TOLERANCE = 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_at_one_to_four_ranks(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    reference = reference_logits(model, IDS)
    save_model(model, tmp_path)
    for ranks in (1, 2, 3, 4):
        with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
            assert relative_error(engine.logits(IDS), reference) < TOLERANCE, ranks
            assert engine.report.amplification == 1.0


@pytest.mark.parametrize("ranks", [2, 3])
def test_biases_of_every_projection(ranks: int, tmp_path: Path) -> None:
    model = make_model("llama", attention_bias=True, mlp_bias=True)
    save_model(model, tmp_path)
    with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < TOLERANCE


def test_sliding_window(tmp_path: Path) -> None:
    model = make_model("mistral", sliding_window=4)
    save_model(model, tmp_path)
    with lm.Engine(tmp_path, tensor_parallel=2, executor="inline") as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < TOLERANCE


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    family=st.sampled_from(FAMILIES),
    groups=st.integers(1, 4),
    ratio=st.integers(1, 3),
    vocabulary=st.integers(60, 300),
    intermediate=st.integers(5, 200),
    tied=st.booleans(),
    equal=st.booleans(),
    ranks=st.integers(1, 5),
)
def test_random_shapes(
    family: str,
    groups: int,
    ratio: int,
    vocabulary: int,
    intermediate: int,
    tied: bool,
    equal: bool,
    ranks: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    heads = groups * ratio
    model = make_model(
        family,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=8,
        hidden_size=4 * heads,
        vocab_size=vocabulary,
        intermediate_size=intermediate,
        tie_word_embeddings=tied,
        pad_token_id=None,
    )
    ids = [token % vocabulary for token in IDS]
    folder = save_model(model, tmp_path_factory.mktemp("model"))
    possible = ranks <= heads and (not equal or heads % ranks == 0)
    if not possible:
        with pytest.raises(lm.PlanError) as caught:
            lm.plan(folder, tensor_parallel=ranks, equal_ranks=equal)
        assert caught.value.code == "LM-PLAN-HEADS"
        return
    with lm.Engine(folder, tensor_parallel=ranks, executor="inline", equal_ranks=equal) as engine:
        assert relative_error(engine.logits(ids), reference_logits(model, ids)) < TOLERANCE
        sizes = {sum(binding.nbytes for binding in rank.bindings) for rank in engine.plan.ranks}
        assert len(sizes) == 1 or not equal or heads // groups != 1
