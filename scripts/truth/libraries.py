"""Models of diffusers, x-transformers, PyTorch Geometric and timm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from truth.case import IDS, Case, Slots, noise

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
STEP = torch.tensor([3])


def _diffusers(name: str, config: dict, inputs: Any, truth: dict[str, Slots], reason: str) -> Case:
    def build() -> nn.Module:
        import diffusers

        return getattr(diffusers, name)(**config)

    return Case(name, build, inputs, truth, reason)


DIFFUSERS = [
    _diffusers(
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 2,
            "cross_attention_dim": 16,
            "sample_size": 8,
            "patch_size": 2,
            "caption_channels": 12,
            "use_additional_conditions": False,
        },
        lambda: {
            "hidden_states": noise(1, 4, 8, 8),
            "encoder_hidden_states": noise(1, 5, 12),
            "timestep": STEP,
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        {"transformer_blocks.*.norm1": "input", "transformer_blocks.*.norm2": "input", "norm_out": "final"},
        "BasicTransformerBlock with ada_norm_single: no norm before cross-attention, norm2 before the MLP",
    ),
    _diffusers(
        "FluxTransformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 12,
            "pooled_projection_dim": 12,
            "axes_dims_rope": (4, 4, 8),
        },
        lambda: {
            "hidden_states": noise(1, 4, 4),
            "encoder_hidden_states": noise(1, 5, 12),
            "pooled_projections": noise(1, 12),
            "timestep": torch.tensor([0.5]),
            "img_ids": torch.zeros(4, 3),
            "txt_ids": torch.zeros(5, 3),
        },
        {
            "transformer_blocks.*.norm1.norm": "input",
            "transformer_blocks.*.norm1_context.norm": "input",
            "transformer_blocks.*.norm2": "input",
            "transformer_blocks.*.norm2_context": "input",
            "single_transformer_blocks.*.norm.norm": "input",
            "*.*.attn.norm_q": "inner.q",
            "*.*.attn.norm_k": "inner.k",
            "*.*.attn.norm_added_q": "inner.q",
            "*.*.attn.norm_added_k": "inner.k",
            "norm_out.norm": "final",
        },
        "FluxTransformerBlock: two streams, joint attention; FluxSingleTransformerBlock: one, parallel branches",
    ),
    _diffusers(
        "Lumina2Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "hidden_size": 24,
            "num_layers": 1,
            "num_refiner_layers": 1,
            "num_attention_heads": 3,
            "num_kv_heads": 1,
            "multiple_of": 8,
            "cap_feat_dim": 12,
            "axes_dim_rope": (4, 2, 2),
            "axes_lens": (16, 16, 16),
        },
        lambda: {
            "hidden_states": noise(1, 4, 8, 8),
            "encoder_hidden_states": noise(1, 5, 12),
            "encoder_attention_mask": torch.ones(1, 5, dtype=torch.bool),
            "timestep": torch.tensor([0.5]),
        },
        {
            "time_caption_embed.caption_embedder.0": "embedding",
            "*.*.attn.norm_q": "inner.q",
            "*.*.attn.norm_k": "inner.k",
            "context_refiner.*.norm1": "input",
            "*.*.norm1.norm": "input",
            "*.*.norm2": "output",
            "*.*.ffn_norm1": "input",
            "*.*.ffn_norm2": "output",
            "norm_out.norm": "final",
        },
        "Lumina2TransformerBlock: norms on both ends of each branch; the caption is normalized before its embedding",
    ),
    _diffusers(
        "SanaTransformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": 12,
            "sample_size": 8,
            "qk_norm": "rms_norm_across_heads",
        },
        lambda: {"hidden_states": noise(1, 4, 8, 8), "encoder_hidden_states": noise(1, 5, 12), "timestep": STEP},
        {
            "caption_norm": "input",
            "transformer_blocks.*.norm1": "input",
            "transformer_blocks.*.norm2": "input",
            "transformer_blocks.*.attn*.norm_q": "inner.q",
            "transformer_blocks.*.attn*.norm_k": "inner.k",
            "norm_out.norm": "final",
        },
        "SanaTransformerBlock: linear attention without softmax, cross-attention to a normalized memory",
    ),
    _diffusers(
        "CogVideoXTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 8,
            "text_embed_dim": 12,
            "num_layers": 2,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "patch_size": 2,
            "max_text_seq_length": 5,
        },
        lambda: {"hidden_states": noise(1, 2, 4, 8, 8), "encoder_hidden_states": noise(1, 5, 12), "timestep": STEP},
        {
            "transformer_blocks.*.norm1.norm": "input",
            "transformer_blocks.*.norm2.norm": "input",
            "transformer_blocks.*.attn1.norm_q": "inner.q",
            "transformer_blocks.*.attn1.norm_k": "inner.k",
            "norm_final": "final",
            "norm_out.norm": "final",
        },
        "CogVideoXBlock: each norm serves video and text; two norms behind the stack",
    ),
    _diffusers(
        "WanTransformer3DModel",
        {
            "patch_size": (1, 2, 2),
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 16,
            "freq_dim": 32,
            "ffn_dim": 32,
            "num_layers": 2,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "rope_max_seq_len": 32,
        },
        lambda: {"hidden_states": noise(1, 4, 2, 8, 8), "encoder_hidden_states": noise(1, 5, 16), "timestep": STEP},
        {
            "blocks.*.norm*": "input",
            "blocks.*.attn*.norm_q": "inner.q",
            "blocks.*.attn*.norm_k": "inner.k",
            "norm_out": "final",
        },
        "WanTransformerBlock: pre-norm with norms on queries and keys, in cross-attention too",
    ),
    _diffusers(
        "MochiTransformer3DModel",
        {
            "patch_size": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "pooled_projection_dim": 16,
            "in_channels": 4,
            "text_embed_dim": 16,
            "time_embed_dim": 4,
            "max_sequence_length": 16,
        },
        lambda: {
            "hidden_states": noise(1, 4, 2, 8, 8),
            "encoder_hidden_states": noise(1, 5, 16),
            "timestep": STEP,
            "encoder_attention_mask": torch.ones(1, 5, dtype=torch.bool),
        },
        {
            "transformer_blocks.*.attn1.norm_q": "inner.q",
            "transformer_blocks.*.attn1.norm_k": "inner.k",
            "transformer_blocks.*.attn1.norm_added_q": "inner.q",
            "transformer_blocks.*.attn1.norm_added_k": "inner.k",
            "transformer_blocks.*.norm1*.norm": "input",
            "transformer_blocks.*.norm1_context.norm.norm": "input",
            "transformer_blocks.*.norm2*.norm": "output",
            "transformer_blocks.*.norm3*.norm": "input",
            "transformer_blocks.*.norm4*.norm": "output",
            "norm_out.norm": "final",
        },
        "MochiTransformerBlock: norms on both ends of each branch of both streams; the last text block only reads",
    ),
    _diffusers(
        "AutoencoderKL",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "latent_channels": 4,
        },
        lambda: {"sample": noise(1, 3, 16, 16)},
        {
            "*.*_blocks.*.resnets.*.norm1": "input",
            "*.*_blocks.*.resnets.*.norm2": "inner.mid",
            "*.mid_block.resnets.*.norm1": "input",
            "*.mid_block.resnets.*.norm2": "inner.mid",
            "*.mid_block.attentions.*.group_norm": "input",
            "encoder.conv_norm_out": "transition",
            "decoder.conv_norm_out": "final",
        },
        "ResnetBlock2D: group norms before both convolutions; the encoder's last norm leads to the decoder's stack",
    ),
    _diffusers(
        "UNet2DConditionModel",
        {
            "sample_size": 8,
            "block_out_channels": (8, 16),
            "cross_attention_dim": 12,
            "attention_head_dim": 4,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        },
        lambda: {"sample": noise(1, 4, 8, 8), "timestep": STEP, "encoder_hidden_states": noise(1, 5, 12)},
        {
            "*_blocks.*.resnets.*.norm1": "input",
            "*_blocks.*.resnets.*.norm2": "inner.mid",
            "mid_block.resnets.*.norm1": "input",
            "mid_block.resnets.*.norm2": "inner.mid",
            "*_blocks.*.attentions.*.norm": "input",
            "mid_block.attentions.*.norm": "input",
            "*_blocks.*.attentions.*.transformer_blocks.*.norm*": "input",
            "mid_block.attentions.*.transformer_blocks.*.norm*": "input",
            "conv_norm_out": "final",
        },
        "Transformer2DModel: a pre-norm stack within a branch that begins with a group norm",
    ),
]


def _wrapped(stack: str, **options: Any) -> nn.Module:
    import x_transformers

    layers = getattr(x_transformers, stack)(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    return x_transformers.TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers)


def _sequences() -> nn.Module:
    import x_transformers

    return x_transformers.XTransformer(
        dim=32, enc_num_tokens=40, enc_depth=2, enc_heads=4, enc_max_seq_len=16, enc_use_rmsnorm=True,
        dec_num_tokens=40, dec_depth=2, dec_heads=4, dec_max_seq_len=16, dec_attn_qk_rmsnorm=True,
        dec_cross_attn_qk_rmsnorm=True,
    )  # fmt: skip


def _pictures() -> nn.Module:
    import x_transformers

    layers = x_transformers.Encoder(
        dim=32, depth=2, heads=4, attn_dim_head=8, use_scalenorm=True, ff_post_act_ln=True, macaron=True
    )
    return x_transformers.ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=5, post_emb_norm=True, attn_layers=layers
    )


X_TRANSFORMERS = [
    Case(
        "x-transformers post-norm",
        lambda: _wrapped("Encoder", pre_norm=False),
        lambda: (IDS,),
        {"attn_layers.layers.*.0.2.ln": "stream"},
        "AttentionLayers.forward: post_main_norm runs on what Residual returns",
    ),
    Case(
        "x-transformers sandwich with QK norm",
        lambda: _wrapped("Decoder", sandwich_norm=True, attn_qk_norm=True),
        lambda: (IDS,),
        {
            "attn_layers.layers.*.0.0.ln": "input",
            "attn_layers.layers.*.0.1.ln": "output",
            "attn_layers.layers.0.1:": ("inner.q", "inner.k"),
            "attn_layers.layers.2.1:": ("inner.q", "inner.k"),
            "attn_layers.final_norm.ln": "final",
        },
        "Attention.forward: l2norm of queries and keys; layers 0 and 2 are attention",
    ),
    Case(
        "x-transformers encoder and decoder",
        _sequences,
        lambda: (IDS, IDS),
        {
            "encoder.attn_layers.layers.*.0.0": "input",
            "encoder.attn_layers.final_norm": "final",
            "decoder.net.attn_layers.layers.*.0.0.ln": "input",
            "decoder.net.attn_layers.layers.*.1.q_rmsnorm.rmsnorm": "inner.q",
            "decoder.net.attn_layers.layers.*.1.k_rmsnorm.rmsnorm": "inner.k",
            "decoder.net.attn_layers.final_norm.ln": "final",
        },
        "Attention.forward: norms on queries and keys of self- and cross-attention",
    ),
    Case(
        "x-transformers pre- and post-norm",
        lambda: _wrapped("Decoder", pre_and_post_norm=True),
        lambda: (IDS,),
        {"attn_layers.layers.*.0.0.ln": "input", "attn_layers.layers.*.0.2.ln": "stream"},
        "AttentionLayers.forward: pre_branch_norm and post_main_norm; no final norm",
    ),
    Case(
        "x-transformers DyT",
        lambda: _wrapped("Decoder", use_dynamic_tanh=True, attn_value_rmsnorm=True),
        lambda: (IDS,),
        {
            "attn_layers.layers.*.0.0": "input",
            "attn_layers.layers.*.1.value_rmsnorm.rmsnorm": "inner.v",
            "attn_layers.final_norm": "final",
        },
        "DynamicTanh in every place of a norm; values normalized",
    ),
    Case(
        "x-transformers macaron ViT",
        _pictures,
        lambda: (noise(1, 3, 32, 32),),
        {
            "patch_to_embedding.*.ln": "embedding",
            "post_emb_norm.ln": "embedding",
            "attn_layers.layers.*.0.0": "input",
            "attn_layers.layers.*.1.fn.ff.*.ln": "inner.mid",
            "attn_layers.final_norm": "final",
        },
        "FeedForward with post_act_ln: a norm between its maps; ScaleNorm before each branch",
    ),
]


class DeeperNetwork(nn.Module):
    """The example of PyTorch Geometric's DeepGCNLayer: the first layer's norm is used behind the last layer."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import DeepGCNLayer, GCNConv

        self.encoder = nn.Linear(8, 16)
        self.layers = nn.ModuleList(
            DeepGCNLayer(GCNConv(16, 16), nn.LayerNorm(16), nn.ReLU(), block="res+", dropout=0.1) for _ in range(3)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x, edge_index):
        """Scores of the nodes."""
        x = self.layers[0].conv(self.encoder(x), edge_index)
        for layer in self.layers[1:]:
            x = layer(x, edge_index)
        return self.head(self.layers[0].act(self.layers[0].norm(x)))


class GpsNetwork(nn.Module):
    """Two layers of GPS, each a message passing and an attention in parallel, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv, GPSConv

        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(GPSConv(16, GCNConv(16, 16), heads=2) for _ in range(2))

    def forward(self, x, edge_index):
        """Scores of the nodes."""
        x = self.encoder(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.head(x)


def _gcn() -> nn.Module:
    from torch_geometric.nn import GCN

    return GCN(8, 16, 3, 4, norm="layer_norm")


def _sgformer() -> nn.Module:
    from torch_geometric.nn import SGFormer

    return SGFormer(8, 16, 4)


def _mixer() -> nn.Module:
    from torch_geometric.nn.models.graph_mixer import _MLPMixer

    return _MLPMixer(4, 8, 3)


def _graph():
    return (noise(5, 8), EDGES)


GRAPHS = [
    Case("PyG GCN", _gcn, _graph, {"norms.*": "plain"}, "BasicGNN.forward: convolution, norm, activation; no adds"),
    Case(
        "PyG DeepGCNLayer",
        DeeperNetwork,
        _graph,
        {"layers.0.norm": "final", "layers.*.norm": "input"},
        "DeepGCNLayer.forward with res+: norm, activation, convolution, add",
    ),
    Case(
        "PyG GPSConv",
        GpsNetwork,
        _graph,
        {"layers.*.norm1.module": "stream", "layers.*.norm2.module": "stream", "layers.*.norm3.module": "stream"},
        "GPSConv.forward: each of the three sums is normalized",
    ),
    Case(
        "PyG SGFormer",
        _sgformer,
        lambda: (*_graph(), torch.zeros(5, dtype=torch.long)),
        {
            "trans_conv.bns.0": "embedding",
            "trans_conv.bns.*": "stream",
            "trans_conv.attns.*:": ("inner.q", "inner.k"),
            "graph_conv.bns.0": "embedding",
            "graph_conv.bns.*": "output",
        },
        "SGModule: post-norm with linear attention; GraphModule: batch norm behind the convolution, then the add",
    ),
    Case(
        "PyG MLP-Mixer",
        _mixer,
        lambda: (noise(2, 4, 8),),
        {"token_norm": "input", "channel_norm": "input", "head_norm": "final"},
        "_MLPMixer.forward: pre-norm; the mixing of tokens is a linear map of the transpose",
    ),
]


def _timm(name: str, options: dict, size: int, truth: dict[str, Slots], reason: str) -> Case:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, **options)

    return Case(f"timm {name}", build, lambda: (noise(1, 3, size, size),), truth, reason)


def _convmixer() -> nn.Module:
    from timm.models.convmixer import ConvMixer

    return ConvMixer(16, 2, kernel_size=3, patch_size=7, num_classes=5)


TIMM = [
    _timm(
        "xcit_nano_12_p16_224",
        {"img_size": 64, "depth": 2, "cls_attn_layers": 0, "embed_dim": 32},
        64,
        {
            "patch_embed.proj.*.1": "embedding",
            "blocks.*.norm*": "input",
            "blocks.*.attn:": ("inner.q", "inner.k"),
            "blocks.*.local_mp.bn": "inner.mid",
            "norm": "final",
        },
        "XCA: queries and keys normalized along tokens; LPI: a batch norm between two convolutions",
    ),
    _timm(
        "cait_xxs24_224",
        {"img_size": 64, "depth": 2, "depth_token_only": 1, "embed_dim": 48, "num_heads": 2},
        64,
        {"blocks.*.norm*": "input", "blocks_token_only.*.norm*": "input", "norm": "final"},
        "LayerScaleBlockClassAttn: the norm of class token and patches is read by the class token's branch",
    ),
    _timm(
        "eva02_tiny_patch14_224",
        {
            "img_size": 56,
            "depth": 2,
            "embed_dim": 48,
            "num_heads": 3,
            "scale_mlp": True,
            "scale_attn_inner": True,
            "qkv_fused": False,
        },
        56,
        {
            "blocks.*.norm1": "input",
            "blocks.*.attn.norm": "inner.pre-output",
            "blocks.*.norm2": "input",
            "blocks.*.mlp.norm": "inner.mid",
            "fc_norm": "final",
        },
        "EvaBlock: norms before both branches and inside both",
    ),
    _timm(
        "vit_base_patch16_rpn_224",
        {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2},
        64,
        {"blocks.*.norm1": "output", "blocks.*.norm2": "output", "fc_norm": "final"},
        "ResPostBlock: norms behind the branches; fc_norm behind the pooling",
    ),
    _timm(
        "densenet121",
        {"growth_rate": 4, "block_config": (2, 2)},
        64,
        {"features.norm*": "plain", "features.*.*.norm*": "plain", "features.transition1.norm": "plain"},
        "DenseBlock: layers are concatenated, never added",
    ),
    _timm("nf_resnet26", {}, 64, {}, "NormFreeBlock: only weights are standardized"),
    _timm(
        "twins_svt_small",
        {"img_size": 64, "embed_dims": [16, 32, 32, 32], "depths": [2, 2, 1, 1], "num_heads": [1, 2, 2, 2]},
        64,
        {
            "patch_embeds.0.norm": "embedding",
            "patch_embeds.*.norm": "transition",
            "blocks.*.*.norm*": "input",
            "blocks.*.*.attn.norm": "inner.kv-latent",
            "norm": "final",
        },
        "GlobalSubSampleAttn: a normalized convolution is mapped to keys and values",
    ),
    Case(
        "timm ConvMixer",
        _convmixer,
        lambda: (noise(1, 3, 28, 28),),
        {"stem.2": "embedding", "blocks.*.0.fn.2": "output", "blocks.0.3": "transition", "blocks.1.3": "head"},
        "ConvMixer: convolution, activation, norm in and between the residual parts",
    ),
    _timm(
        "mixer_s32_224",
        {"img_size": 64},
        64,
        {"blocks.*.norm1": "input", "blocks.*.norm2": "input", "norm": "final"},
        "MixerBlock: pre-norm around the mixing of tokens and of channels",
    ),
]

CASES = [*DIFFUSERS, *X_TRANSFORMERS, *GRAPHS, *TIMM]
