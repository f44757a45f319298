"""Names of PyTorch's operators, grouped by what they do to features.

*Moving* operators (views, casts, dropout, gathers) keep every number. *Barriers* (products with weights, attention,
convolutions, transforms) make new features. All others work element by element or reduce. Residual adds and the slots
of norms depend on which paths cross a barrier.
"""

from __future__ import annotations


def named(names: str) -> frozenset[str]:
    """The names in a string."""
    return frozenset(names.split())


CASTS = named("_to_copy clone contiguous detach alias lift_fresh lift copy to _conj positive")
RESHAPES = named(
    "view _unsafe_view _reshape_alias reshape transpose t permute unsqueeze squeeze expand as_strided unfold movedim "
    "view_as_real view_as_complex"
)
TRANSPOSES = named("transpose t permute")
SPLITS = named("slice select split split_with_sizes unsafe_split unsafe_split_with_sizes unbind narrow chunk")
KEEPS = CASTS | RESHAPES
MOVES = (
    KEEPS
    | SPLITS
    | named(
        "roll flip constant_pad_nd repeat repeat_interleave index_select gather index _unsafe_index masked_select "
        "masked_fill masked_scatter where sort tril triu diagonal native_dropout dropout bernoulli clamp clamp_min "
        "clamp_max nan_to_num pixel_shuffle pixel_unshuffle channel_shuffle "
        "im2col reflection_pad1d reflection_pad2d replication_pad2d"
    )
)
# Factories use only the shape of their tensor.
SHAPED = named(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full "
    "new_empty_strided"
)
ZEROS = named("zeros zeros_like new_zeros")

PRODUCTS = named("mm addmm bmm baddbmm matmul linear dot mv addmv addbmm einsum _grouped_mm _scaled_mm")
BIASED_PRODUCTS = named("addmm baddbmm addmv addbmm")
ATTENTION = named(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps "
    "_flash_attention_forward _efficient_attention_forward flex_attention"
)
CONVOLUTIONS = named(
    "convolution _convolution mkldnn_convolution cudnn_convolution conv2d thnn_conv2d _slow_conv2d_forward"
)
RECURRENCES = named("lstm gru rnn_tanh rnn_relu _thnn_fused_lstm_cell mkldnn_rnn_layer _cudnn_rnn")
FOURIER = named("_fft_r2c _fft_c2c _fft_c2r")
BARRIERS = PRODUCTS | ATTENTION | CONVOLUTIONS | RECURRENCES | FOURIER | {"embedding", "embedding_bag"}
# These mix rows without making new features: a path through them may be a branch or a stream.
POOLS = named("cumsum avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices")
ROW_MIXERS = CONVOLUTIONS | RECURRENCES | FOURIER | POOLS | {"grid_sampler_2d", "grid_sampler_3d"}

SOFTMAXES = named("_softmax softmax _safe_softmax")
GATES = SOFTMAXES | {"sigmoid", "tanh", "hardsigmoid"}
GATE_ARITHMETIC = MOVES | {"rsub", "mul", "add"}
EXPERTS = named("topk _grouped_mm")
SPREADS = named("index_add scatter_add scatter_reduce segment_reduce")
AGGREGATIONS = SPREADS | {"normplace::aggregate"}
SPARSE_PRODUCTS = named("_sparse_addmm _sparse_mm_reduce_impl")
ADDS = SPREADS | {"add"}

REDUCTIONS = named("mean sum nansum var var_mean std std_mean linalg_vector_norm norm amax")
FOLDS = REDUCTIONS | SPREADS
ROOTS = named("rsqrt sqrt linalg_vector_norm norm std std_mean")
EVEN = named("square abs var var_mean std std_mean linalg_vector_norm norm")
SPREAD_OF_VALUES = named("var var_mean std std_mean")
SHIFTS = named("add clamp clamp_min maximum")
SQUASHERS = named("tanh erf sigmoid atan softsign")

# Norm operators: their kind, and the position of eps among the arguments.
NORMS = {
    "native_layer_norm": ("layer", 4),
    "layer_norm": ("layer", 4),
    "_fused_rms_norm": ("rms", 3),
    "rms_norm": ("rms", 3),
    "native_group_norm": ("group", 7),
    "native_batch_norm": ("batch", 7),
    "_native_batch_norm_legit": ("batch", 7),
    "_native_batch_norm_legit_no_training": ("batch", 6),
    "_batch_norm_with_update": ("batch", 6),
    "_batch_norm_no_update": ("batch", 6),
    "cudnn_batch_norm": ("batch", 7),
    "miopen_batch_norm": ("batch", 7),
    "batch_norm": ("batch", 7),
}
