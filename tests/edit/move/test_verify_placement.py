"""Moves whose copy does not have the requested placement are refused with the reason."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.edit.small_models import Shortcut, Stack, features

import normplace as npl
from normplace.edit.move.verify_placement import has_placement, has_same_scale
from normplace.errors import UsageError
from normplace.placement import BlockSpec, LearnedScale


def test_a_branch_added_after_later_blocks_is_refused():
    reason = r"block 4 \(mlp in layers\.0\), because its branch reads the stream before block 1"
    with pytest.raises(UsageError, match=rf"{reason} and is added after block 3"):
        npl.move(Stack(Shortcut(), Shortcut()), features(2, 5), to="peri")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("identity_experts", [False, True])
@pytest.mark.parametrize("to", ["post", "peri", "output"])
def test_shortcut_experts_are_refused(identity_experts, to):
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = hf.LongcatFlashConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_layers=2, num_attention_heads=4, ffn_hidden_size=48,
        q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, head_dim=8, moe_topk=2,
        n_routed_experts=4, zero_expert_num=1, expert_ffn_hidden_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model, ids = hf.LongcatFlashModel(config).eval(), torch.arange(12).view(2, 6)
    if identity_experts:  # every token chooses one
        for layer in model.layers:
            layer.mlp.router.e_score_correction_bias[-1] = 10.0
    reason = r"block 4 \(experts in layers\.0\), because its branch reads the stream before block 1"
    with pytest.raises(UsageError, match=reason):
        npl.move(model, input_ids=ids, to=to)


@pytest.mark.parametrize("to", ["output", "peri", "post"])
@pytest.mark.filterwarnings("ignore")
def test_a_module_created_during_the_pass_raises_no_other_error(to):
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = hf.DebertaV2Config(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, conv_kernel_size=3, conv_act="gelu", relative_attention=True,
    )  # fmt: skip
    model = hf.DebertaV2Model(config).eval()
    with contextlib.suppress(UsageError):
        npl.move(model, input_ids=torch.arange(3, 12)[None], to=to)


def test_the_placement_of_a_block():
    pre, peri = BlockSpec(input=True), BlockSpec(input=True, output=True)
    scaled = BlockSpec(input=True, input_scale=0.5)
    learned = [BlockSpec(input=True, branch_scale=LearnedScale(per_channel=flag)) for flag in (True, False)]
    assert has_placement(pre, [pre])
    assert not has_placement(peri, [peri, pre])
    assert has_placement(pre, [scaled, learned[0]])  # the target has no scales to compare
    assert not has_placement(scaled, [pre])
    assert has_placement(learned[0], [learned[0]])
    assert not has_placement(learned[0], [learned[1]])
    assert has_same_scale(pre, scaled)
    assert not has_same_scale(pre, learned[0])
