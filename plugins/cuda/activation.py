"""The values of the macro TL_ACTIVATION, by the activation's name in schemas. Uses only the standard library."""

# Value of TL_ACTIVATION; cuda/activation.cuh reads it.
ACTIVATION_FLAGS = {"none": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "swiglu_oai": 4, "relu": 5, "relu2": 6}
