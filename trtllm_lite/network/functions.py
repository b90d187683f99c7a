"""Defines the functions of the project that networks may call where standard operators say too little for the builder.

A network defines each function that it calls, in the domain FUNCTIONS, with a body of standard operators, so that any
ONNX runtime computes it. The builder replaces calls by operators of ``plugins/`` with the same meaning, and so accepts
no other bodies than those of this module.
"""

import onnx
import onnx_ir as ir

FUNCTIONS, FUNCTIONS_VERSION = "trtllm_lite.functions", 1
GATED_DELTA_RULE = "GatedDeltaRule"
MAMBA2 = "Mamba2"
MIX_STREAMS = "MixStreams"
RESCALE_ROWS = "RescaleRows"
CUT_ROWS = "CutRows"

# The gated delta rule (arXiv 2412.06464) of tokens one after the other: qkv [batch, seq, 2 * key_heads * key_dim +
# value_heads * value_dim] holds queries and keys of all key heads, then values; b is [batch, seq, value_heads], a_log
# [value_heads]; the state is [batch, value_heads, key_dim, value_dim]. A head has one decay, or one for each row of its
# state, which is a channel of the key (Kimi Delta Attention, arXiv 2510.26692): a is [batch, seq, decays], dt_bias
# [decays]. Value head h reads key head h // (value_heads / key_heads). Queries q and keys k are l2-normalised, queries
# are multiplied by scale. With beta = sigmoid(b) and decay = exp(-exp(a_log) * softplus(a + dt_bias)), a token changes
# the state S to decay * S, then, by its value v, to S + k u^T, where u = beta * (v - S^T k), and its output is S^T q.
_GATED_DELTA_RULE = """
<domain: "trtllm_lite.functions", opset_import: ["": 24]>
GatedDeltaRule <num_key_heads, scale, norm_epsilon>
(qkv, a, b, a_log, dt_bias, state) => (y, new_state)
{
    value_heads = Shape <start = 1, end = 2> (state)
    key_dim = Shape <start = 2, end = 3> (state)
    value_dim = Shape <start = 3, end = 4> (state)
    one = Constant <value_ints = [1]> ()
    same = Constant <value_ints = [0, 0]> ()
    last = Constant <value_ints = [-1]> ()
    key_heads_scalar = Constant <value_int: int = @num_key_heads> ()
    key_heads = Reshape (key_heads_scalar, one)
    keys_width = Mul (key_heads, key_dim)
    values_width = Mul (value_heads, value_dim)
    widths = Concat <axis = 0> (keys_width, keys_width, values_width)
    queries, keys, values = Split <axis = -1> (qkv, widths)

    by_key_head = Concat <axis = 0> (same, key_heads, one, key_dim)
    query_heads = Reshape (queries, by_key_head)
    key_heads_of_tokens = Reshape (keys, by_key_head)
    epsilon = Constant <value_float: float = @norm_epsilon> ()
    query_squares = Mul (query_heads, query_heads)
    query_sum = ReduceSum (query_squares, last)
    query_sum_positive = Add (query_sum, epsilon)
    query_length = Sqrt (query_sum_positive)
    query_normed = Div (query_heads, query_length)
    factor = Constant <value_float: float = @scale> ()
    query_scaled = Mul (query_normed, factor)
    key_squares = Mul (key_heads_of_tokens, key_heads_of_tokens)
    key_sum = ReduceSum (key_squares, last)
    key_sum_positive = Add (key_sum, epsilon)
    key_length = Sqrt (key_sum_positive)
    key_normed = Div (key_heads_of_tokens, key_length)

    repeats = Div (value_heads, key_heads)
    repeated = Concat <axis = 0> (one, one, one, repeats, one)
    query_repeated = Expand (query_scaled, repeated)
    key_repeated = Expand (key_normed, repeated)
    rows = Concat <axis = 0> (same, value_heads, one, key_dim)
    columns = Concat <axis = 0> (same, value_heads, key_dim, one)
    query_rows = Reshape (query_repeated, rows)
    key_rows = Reshape (key_repeated, rows)
    key_columns = Reshape (key_repeated, columns)
    of_values = Concat <axis = 0> (same, value_heads, one, value_dim)
    value_rows = Reshape (values, of_values)

    biased = Add (a, dt_bias)
    step = Softplus (biased)
    by_head = Concat <axis = 0> (same, value_heads, last)
    step_by_head = Reshape (step, by_head)
    speed = Exp (a_log)
    speed_of_head = Unsqueeze (speed, one)
    negative_decay = Mul (speed_of_head, step_by_head)
    log_decay = Neg (negative_decay)
    decay = Exp (log_decay)
    beta = Sigmoid (b)
    matrix_axes = Constant <value_ints = [3, 4]> ()
    decay_of_matrix = Unsqueeze (decay, last)
    beta_of_matrix = Unsqueeze (beta, matrix_axes)

    new_state, outputs = Scan <
        num_scan_inputs = 6,
        scan_input_axes = [1, 1, 1, 1, 1, 1],
        scan_output_axes = [1],
        body = token (
            float[batch, heads, key_dim, value_dim] before,
            float[batch, heads, 1, key_dim] query,
            float[batch, heads, 1, key_dim] key,
            float[batch, heads, key_dim, 1] key_column,
            float[batch, heads, 1, value_dim] value,
            float[batch, heads, decays, 1] token_decay,
            float[batch, heads, 1, 1] token_beta
        ) => (
            float[batch, heads, key_dim, value_dim] after,
            float[batch, heads, 1, value_dim] output
        ) {
            decayed = Mul (before, token_decay)
            known = MatMul (key, decayed)
            unknown = Sub (value, known)
            update = Mul (unknown, token_beta)
            added = MatMul (key_column, update)
            after = Add (decayed, added)
            output = MatMul (query, after)
        }
    > (state, query_rows, key_rows, key_columns, value_rows, decay_of_matrix, beta_of_matrix)
    merged = Concat <axis = 0> (same, last)
    y = Reshape (outputs, merged)
}
"""

# The state space model of Mamba-2 (arXiv 2405.21060) of tokens one after the other: xbc [batch, seq, heads * head_dim +
# 2 * num_groups * state_size] holds the inputs x of all heads, then the vectors B of all groups, then their C; dt is
# [batch, seq, heads], a_log, dt_bias and d are [heads]; the state is [batch, heads, state_size, head_dim]. Head h reads
# group h // (heads / num_groups). With step = softplus(dt + dt_bias) between min_step and max_step, a token changes the
# state S to exp(-exp(a_log) * step) * S + B (step * x)^T, and its output is S^T C + d * x.
_MAMBA2 = """
<domain: "trtllm_lite.functions", opset_import: ["": 24]>
Mamba2 <num_groups, min_step, max_step>
(xbc, dt, a_log, dt_bias, d, state) => (y, new_state)
{
    heads = Shape <start = 1, end = 2> (state)
    state_size = Shape <start = 2, end = 3> (state)
    head_dim = Shape <start = 3, end = 4> (state)
    one = Constant <value_ints = [1]> ()
    same = Constant <value_ints = [0, 0]> ()
    last = Constant <value_ints = [-1]> ()
    groups_scalar = Constant <value_int: int = @num_groups> ()
    groups = Reshape (groups_scalar, one)
    inputs_width = Mul (heads, head_dim)
    vectors_width = Mul (groups, state_size)
    widths = Concat <axis = 0> (inputs_width, vectors_width, vectors_width)
    x, b, c = Split <axis = -1> (xbc, widths)

    repeats = Div (heads, groups)
    by_group = Concat <axis = 0> (same, groups, one, state_size)
    repeated = Concat <axis = 0> (one, one, one, repeats, one)
    b_of_groups = Reshape (b, by_group)
    c_of_groups = Reshape (c, by_group)
    b_repeated = Expand (b_of_groups, repeated)
    c_repeated = Expand (c_of_groups, repeated)
    rows = Concat <axis = 0> (same, heads, one, state_size)
    columns = Concat <axis = 0> (same, heads, state_size, one)
    of_inputs = Concat <axis = 0> (same, heads, one, head_dim)
    b_columns = Reshape (b_repeated, columns)
    c_rows = Reshape (c_repeated, rows)
    x_rows = Reshape (x, of_inputs)

    biased = Add (dt, dt_bias)
    unbounded = Softplus (biased)
    least = Constant <value_float: float = @min_step> ()
    greatest = Constant <value_float: float = @max_step> ()
    step = Clip (unbounded, least, greatest)
    speed = Exp (a_log)
    negative_decay = Mul (speed, step)
    log_decay = Neg (negative_decay)
    decay = Exp (log_decay)
    matrix_axes = Constant <value_ints = [3, 4]> ()
    decay_of_matrix = Unsqueeze (decay, matrix_axes)
    step_of_matrix = Unsqueeze (step, matrix_axes)
    scaled_rows = Mul (x_rows, step_of_matrix)

    new_state, outputs = Scan <
        num_scan_inputs = 4,
        scan_input_axes = [1, 1, 1, 1],
        scan_output_axes = [1],
        body = token (
            float[batch, heads, state_size, head_dim] before,
            float[batch, heads, 1, head_dim] scaled,
            float[batch, heads, state_size, 1] b_column,
            float[batch, heads, 1, state_size] c_row,
            float[batch, heads, 1, 1] token_decay
        ) => (
            float[batch, heads, state_size, head_dim] after,
            float[batch, heads, 1, head_dim] output
        ) {
            decayed = Mul (before, token_decay)
            added = MatMul (b_column, scaled)
            after = Add (decayed, added)
            output = MatMul (c_row, after)
        }
    > (state, scaled_rows, b_columns, c_rows, decay_of_matrix)
    by_head = Constant <value_ints = [-1, 1, 1]> ()
    d_of_heads = Reshape (d, by_head)
    direct = Mul (x_rows, d_of_heads)
    summed = Add (outputs, direct)
    merged = Concat <axis = 0> (same, last)
    y = Reshape (summed, merged)
}
"""

# Mixes of streams whose factors a router finds for each token (AltUp, arXiv 2301.13310): x [batch, seq, inputs *
# hidden] holds the streams one after the other. With the modalities m = tanh(router . x_0 / sqrt(mean(x_0^2) +
# epsilon)), where router is [modalities, hidden], stream j of y [batch, seq, outputs * hidden] is the sum over i of
# (weights[0, j, i] + sum over k of weights[1 + k, j, i] * m[k]) * x_i. The weights [1 + modalities, outputs, most
# inputs] may know more inputs than there are.
_MIX_STREAMS = """
<domain: "trtllm_lite.functions", opset_import: ["": 24]>
MixStreams <epsilon>
(x, router, weights) => (y)
{
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    same = Constant <value_ints = [0, 0]> ()
    last = Constant <value_ints = [-1]> ()
    hidden = Shape <start = 1, end = 2> (router)
    width = Shape <start = 2, end = 3> (x)
    inputs = Div (width, hidden)
    terms = Shape <start = 0, end = 1> (weights)
    outputs = Shape <start = 1, end = 2> (weights)

    first = Slice (x, zero, hidden, two)
    squares = Mul (first, first)
    square = ReduceMean (squares, last)
    added = Constant <value_float: float = @epsilon> ()
    positive = Add (square, added)
    length = Sqrt (positive)
    normed = Div (first, length)
    columns = Transpose <perm = [1, 0]> (router)
    scores = MatMul (normed, columns)
    modalities = Tanh (scores)

    before = Constant <value_ints = [0, 0, 1, 0, 0, 0]> ()
    constant = Constant <value_float = 1.0> ()
    with_constant = Pad (modalities, before, constant)
    of_inputs = Slice (weights, zero, inputs, two)
    pairs = Mul (outputs, inputs)
    by_term = Concat <axis = 0> (terms, pairs)
    weights_by_term = Reshape (of_inputs, by_term)
    factors = MatMul (with_constant, weights_by_term)
    by_output = Concat <axis = 0> (same, outputs, inputs)
    mix = Reshape (factors, by_output)
    by_input = Concat <axis = 0> (same, inputs, hidden)
    streams = Reshape (x, by_input)
    mixed = MatMul (mix, streams)
    merged = Concat <axis = 0> (same, last)
    y = Reshape (mixed, merged)
}
"""

# Gives each row of x the root mean square of the same row of like, unless that of x is below sqrt(least).
_RESCALE_ROWS = """
<domain: "trtllm_lite.functions", opset_import: ["": 24]>
RescaleRows <least>
(x, like) => (y)
{
    last = Constant <value_ints = [-1]> ()
    floor = Constant <value_float: float = @least> ()
    squares = Mul (x, x)
    square = ReduceMean (squares, last)
    bounded = Max (square, floor)
    own = Sqrt (bounded)
    target_squares = Mul (like, like)
    target_square = ReduceMean (target_squares, last)
    target = Sqrt (target_square)
    ratio = Div (target, own)
    y = Mul (x, ratio)
}
"""

# What elements have above mean + factor * deviation, both of their own row; other elements become 0.
_CUT_ROWS = """
<domain: "trtllm_lite.functions", opset_import: ["": 24]>
CutRows <factor>
(x) => (y)
{
    last = Constant <value_ints = [-1]> ()
    times = Constant <value_float: float = @factor> ()
    mean = ReduceMean (x, last)
    centred = Sub (x, mean)
    squares = Mul (centred, centred)
    variance = ReduceMean (squares, last)
    deviation = Sqrt (variance)
    cut = Mul (deviation, times)
    above = Sub (centred, cut)
    y = Relu (above)
}
"""
_TEXTS = {
    **{GATED_DELTA_RULE: _GATED_DELTA_RULE, MAMBA2: _MAMBA2},
    **{MIX_STREAMS: _MIX_STREAMS, RESCALE_ROWS: _RESCALE_ROWS, CUT_ROWS: _CUT_ROWS},
}
TOKEN_WISE = (MIX_STREAMS, RESCALE_ROWS, CUT_ROWS)
"""Functions that treat each token by itself."""


def definition(name: str) -> ir.Function:
    """A new copy of the project's function ``name``."""
    return ir.serde.deserialize_function(onnx.parser.parse_function(_TEXTS[name]))


def is_own(function: onnx.FunctionProto) -> bool:
    """Whether ``function`` is one of the project's, with the body that this version gives it."""
    if function.domain != FUNCTIONS or function.name not in _TEXTS:
        return False
    expected = ir.serde.serialize_function(definition(function.name))
    return bool(function.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True))


def is_call(node: ir.Node) -> bool:
    """Whether ``node`` calls one of the project's functions."""
    return node.domain == FUNCTIONS and node.op_type in _TEXTS
