"""The activations of schemas as the macro TL_ACTIVATION of kernels. Standard library only."""

# Value of TL_ACTIVATION; cuda/activation.cuh reads it.
ACTIVATION_FLAGS = {"none": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "swiglu_oai": 4}
