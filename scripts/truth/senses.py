"""Speech, images, time series and several modalities at once."""

from __future__ import annotations

import torch

from truth.case import IDS, IMAGE, SEQUENCES, TEXT, VISION, WAVES, Case, noise
from truth.case import hugging_face as hf

CVT = "encoder.stages.*.layers.*.attention.attention.convolution_projection"
WORDS = torch.tensor([[1, 4, 5, 6, 2]])


def _image(name: str, config: dict, truth: dict, reason: str) -> Case:
    return hf(name, config, truth, reason, lambda: {"pixel_values": IMAGE})


def _wave():
    return {"input_values": noise(1, 400)}


SPEECH = [
    hf(
        "Whisper",
        {**SEQUENCES, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16},
        {
            "encoder.layers.*.*_layer_norm": "input",
            "decoder.layers.*.*_layer_norm": "input",
            "encoder.layer_norm": "final",
            "decoder.layer_norm": "final",
        },
        "WhisperEncoderLayer, WhisperDecoderLayer: pre-norm; final_layer_norm is before each MLP",
        lambda: {"input_features": noise(1, 8, 20), "decoder_input_ids": IDS},
    ),
    hf(
        "Moonshine",
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "intermediate_size": 48,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "decoder_start_token_id": 1,
        },
        {
            "encoder.groupnorm": "embedding",
            "encoder.layers.*.*_layernorm": "input",
            "encoder.layer_norm": "final",
            "decoder.layers.*.*_layernorm": "input",
            "decoder.norm": "final",
        },
        "MoonshineEncoder: a group norm between the first convolutions; pre-norm layers",
        lambda: {"input_values": noise(1, 2000), "decoder_input_ids": IDS},
    ),
    hf(
        "Wav2Vec2",
        WAVES,
        {
            "feature_extractor.conv_layers.*.layer_norm": "embedding",
            "feature_projection.layer_norm": "embedding",
            "encoder.layer_norm": "stream",
            "encoder.layers.*.layer_norm": "stream",
            "encoder.layers.*.final_layer_norm": "stream",
        },
        "Wav2Vec2Encoder: a convolution of the stream is added to it, and the sum is normalized; post-norm layers",
        _wave,
    ),
    hf(
        "WavLM",
        {**WAVES, "do_stable_layer_norm": True, "feat_extract_norm": "layer", "num_buckets": 8},
        {
            "feature_extractor.conv_layers.*.layer_norm": "embedding",
            "feature_projection.layer_norm": "embedding",
            "encoder.layers.*.layer_norm": "input",
            "encoder.layers.*.final_layer_norm": "input",
            "encoder.layer_norm": "final",
        },
        "WavLMEncoderLayerStableLayerNorm: pre-norm; the encoder's norm runs behind the last layer",
        _wave,
    ),
    hf(
        "Wav2Vec2Conformer",
        {**WAVES, "conv_depthwise_kernel_size": 3, "position_embeddings_type": "rotary"},
        {
            "feature_extractor.conv_layers.*.layer_norm": "embedding",
            "feature_projection.layer_norm": "embedding",
            "encoder.layers.*.ffn*_layer_norm": "input",
            "encoder.layers.*.self_attn_layer_norm": "input",
            "encoder.layers.*.conv_module.layer_norm": "input",
            "encoder.layers.*.conv_module.batch_norm": "inner.mid",
            "encoder.layers.*.final_layer_norm": "stream",
            "encoder.layer_norm": "final",
        },
        "Wav2Vec2ConformerEncoderLayer: four pre-norm branches, then a norm on the sum; one more behind the stack",
        _wave,
    ),
]

IMAGES = [
    _image(
        "Segformer",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 2],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        {
            "stages.0.patch_embeddings.layer_norm": "embedding",
            "stages.1.patch_embeddings.layer_norm": "transition",
            "stages.*.blocks.*.layernorm_*": "input",
            "stages.*.blocks.*.attention.sequence_reduction.layer_norm": "inner.kv-latent",
            "stages.0.layer_norm": "transition",
            "stages.1.layer_norm": "final",
        },
        "SegformerStage: norms at both ends of a stage; keys and values are maps of a normalized convolution",
    ),
    _image(
        "FocalNet",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 2],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "use_conv_embed": False,
        },
        {
            "embeddings.norm": "embedding",
            "encoder.stages.*.layers.*.norm*": "input",
            "encoder.stages.*.downsample.norm": "transition",
            "layernorm": "final",
        },
        "FocalNetLayer: pre-norm around a modulation and an MLP",
    ),
    _image(
        "Cvt",
        {
            "patch_sizes": [3, 3],
            "patch_stride": [2, 2],
            "patch_padding": [1, 1],
            "embed_dim": [8, 16],
            "num_heads": [1, 2],
            "depth": [1, 2],
            "mlp_ratio": [2.0, 2.0],
            "attention_drop_rate": [0.0, 0.0],
            "drop_rate": [0.0, 0.0],
            "drop_path_rate": [0.0, 0.0],
            "qkv_bias": [True, True],
            "cls_token": [False, True],
            "qkv_projection_method": ["dw_bn"] * 2,
            "kernel_qkv": [3, 3],
            "padding_kv": [1, 1],
            "stride_kv": [2, 2],
            "padding_q": [1, 1],
            "stride_q": [1, 1],
        },
        {
            "encoder.stages.0.embedding.convolution_embeddings.normalization": "embedding",
            "encoder.stages.1.embedding.convolution_embeddings.normalization": "transition",
            f"{CVT}_query.convolution_projection.normalization": "inner.q-latent",
            f"{CVT}_key.convolution_projection.normalization": "inner.k-latent",
            f"{CVT}_value.convolution_projection.normalization": "inner.v-latent",
            "encoder.stages.*.layers.*.layernorm_*": "input",
        },
        "CvtSelfAttention: convolution, batch norm, then the map that makes queries, keys or values",
    ),
    _image(
        "Levit",
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [1, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [4, 4, 4],
            "mlp_ratio": [2, 2, 2],
            "attention_ratio": [2, 2, 2],
            "patch_size": 16,
            "drop_path_rate": 0,
        },
        {
            "patch_embeddings.*.batch_norm": "embedding",
            "encoder.stages.*.layers.*.module.queries_keys_values.batch_norm": "inner.qkv",
            "encoder.stages.*.layers.*.module.projection.batch_norm": "output",
            "encoder.stages.*.layers.*.module.linear_up.batch_norm": "inner.mid",
            "encoder.stages.*.layers.*.module.linear_down.batch_norm": "output",
            "encoder.stages.*.layers.*.keys_values.batch_norm": "transition",
            "encoder.stages.*.layers.*.queries.batch_norm": "transition",
            "encoder.stages.*.layers.*.projection.batch_norm": "transition",
        },
        "LevitResidualLayer adds; LevitAttentionSubsample between stages has no skip",
    ),
    _image(
        "MobileViT",
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [4, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
        },
        {
            "conv_stem.normalization": "embedding",
            "encoder.layer.0.layer.0.*.normalization": "embedding",
            "encoder.layer.1.layer.0.*.normalization": "embedding",
            "encoder.layer.1.layer.*.reduce_1x1.normalization": "output",
            "encoder.layer.1.layer.*.*.normalization": "inner.mid",
            "encoder.layer.*.downsampling_layer.*.normalization": "transition",
            "encoder.layer.*.conv_kxk.normalization": "transition",
            "encoder.layer.*.transformer.layer.*.layernorm_*": "input",
            "encoder.layer.4.layernorm": "final",
            "encoder.layer.*.layernorm": "transition",
            "encoder.layer.4.conv_projection.normalization": "head",
            "encoder.layer.4.fusion.normalization": "head",
            "encoder.layer.*.conv_projection.normalization": "transition",
            "encoder.layer.*.fusion.normalization": "transition",
            "conv_1x1_exp.normalization": "head",
        },
        "MobileViTInvertedResidual adds where stride is 1 and widths agree; MobileViTLayer joins by a concatenation",
    ),
    _image(
        "RegNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4},
        {
            "embedder.embedder.normalization": "embedding",
            "encoder.stages.*.layers.*.layer.3.normalization": "output",
            "encoder.stages.*.layers.*.layer.*.normalization": "inner.mid",
            "encoder.stages.*.layers.*.shortcut.normalization": "skip",
        },
        "RegNetYLayer: as a bottleneck, with a gate before the last convolution",
    ),
    _image(
        "Bit",
        {"embedding_size": 8, "hidden_sizes": [32, 64], "depths": [1, 2], "num_groups": 2},
        {
            "encoder.stages.*.layers.*.norm1": "input",
            "encoder.stages.*.layers.*.norm2": "inner.mid",
            "encoder.stages.*.layers.*.norm3": "inner.mid",
            "norm": "final",
        },
        "BitPreActivationBottleneckLayer: a projected skip starts behind norm1, a plain one before it",
    ),
    _image(
        "ConvNextV2",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "patch_size": 2},
        {
            "embeddings.layernorm": "embedding",
            "encoder.stages.*.layers.*.layernorm": "inner.mid",
            "encoder.stages.*.downsampling_layer.0": "transition",
            "layernorm": "final",
        },
        "ConvNextV2GRN multiplies by relative lengths, so its output scales with its input: it is not a norm",
    ),
    hf(
        "Swin2SR",
        {
            "image_size": 16,
            "patch_size": 1,
            "num_channels": 3,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        {
            "embeddings.patch_embeddings.layernorm": "embedding",
            "encoder.stages.*.layers.*.layernorm_*": "output",
            "encoder.stages.*.layers.*.attention.self:": ("inner.q", "inner.k"),
            "layernorm": "final",
        },
        "Swin2SRLayer: norms behind the branches; the whole stack is a branch of one long skip",
        lambda: {"pixel_values": IMAGE[:, :, :16, :16]},
    ),
    _image(
        "PoolFormer",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 2],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "padding": [1, 1],
            "patch_size": 3,
            "stride": 2,
        },
        {"encoder.block.*.*.before_norm": "input", "encoder.block.*.*.after_norm": "input"},
        "PoolFormerLayer: group norms before a pooling and before an MLP of convolutions",
    ),
]

MIXED = [
    hf(
        "Lxmert",
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "l_layers": 1,
            "x_layers": 1,
            "r_layers": 1,
            "visual_feat_dim": 16,
            "visual_pos_dim": 4,
            "max_position_embeddings": 32,
        },
        {
            "embeddings.LayerNorm": "embedding",
            "encoder.visn_fc.*_layer_norm": "embedding",
            "encoder.*layer*.*.attention.output.LayerNorm": "stream",
            "encoder.*layer*.*.output.LayerNorm": "stream",
            "encoder.x_layers.*.*_att.output.LayerNorm": "stream",
            "encoder.x_layers.*.visual_attention.output.LayerNorm": "stream",
            "encoder.x_layers.*.*_output.LayerNorm": "stream",
        },
        "LxmertAttentionOutput, LxmertOutput: every sum of both streams is normalized",
        lambda: {"input_ids": IDS, "visual_feats": noise(1, 3, 16), "visual_pos": noise(1, 3, 4).abs()},
    ),
    hf(
        "CLIP",
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
        {
            "vision_model.pre_layrnorm": "embedding",
            "*_model.encoder.layers.*.layer_norm*": "input",
            "text_model.final_layer_norm": "final",
            "vision_model.post_layernorm": "final",
            ":": ("head", "head"),
        },
        "CLIPModel: both projections are divided by their length",
        lambda: {"input_ids": WORDS, "pixel_values": IMAGE},
    ),
    hf(
        "Siglip",
        {"text_config": TEXT, "vision_config": VISION},
        {
            "*_model.encoder.layers.*.layer_norm*": "input",
            "text_model.final_layer_norm": "final",
            "vision_model.post_layernorm": "transition",
            "vision_model.head.layernorm": "input",
            ":": ("final", "head"),
        },
        "SiglipMultiheadAttentionPoolingHead: one more residual MLP behind the pooling, whose sum is divided by its "
        "length; the text's length is taken behind a linear head",
        lambda: {"input_ids": WORDS, "pixel_values": IMAGE},
    ),
    hf(
        "PatchTST",
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "num_hidden_layers": 2,
            "d_model": 32,
            "num_attention_heads": 4,
            "ffn_dim": 48,
        },
        {
            "scaler.scaler": "embedding",
            "encoder.layers.*.norm_sublayer1.batchnorm": "input",
            "encoder.layers.*.norm_sublayer3.batchnorm": "input",
        },
        "PatchTSTStdScaler standardizes each series; PatchTSTEncoderLayer: batch norms before the branches",
        lambda: {"past_values": noise(1, 32, 2)},
    ),
]

CASES = [*SPEECH, *IMAGES, *MIXED]
