"""Makes the ``config.pbtxt`` of each model in a Triton repository.

Their fields are described at https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtllm_lite.engine.manifest import Target
from trtllm_lite.triton import tensors
from trtllm_lite.triton.tensors import Tensor
from trtllm_lite.triton.text_proto import Enum, Message

# Every request is one sequence of the engine's batch, or one search. Clients of Triton's TensorRT-LLM backend send all
# tensors with a first extent of 1.
_MAX_BATCH_SIZE = 1

PREPROCESSING, TENSORRT_LLM, POSTPROCESSING, ENSEMBLE = "preprocessing", "tensorrt_llm", "postprocessing", "ensemble"


@dataclass(frozen=True)
class _Step:
    """A model of the ensemble, and the ensemble's names of its tensors: internal names begin with _."""

    model: str
    inputs: Mapping[Tensor, str]
    outputs: Mapping[Tensor, str]


def preprocessing(tokenizer_dir: str) -> Message:
    """The configuration of the model that turns text into token ids."""
    outputs = (tensors.INPUT_ID, tensors.REQUEST_INPUT_LEN)
    return _python(PREPROCESSING, Target("cpu"), (tensors.QUERY,), outputs, {"tokenizer_dir": tokenizer_dir})


def tensorrt_llm(engine_dir: str, target: Target) -> Message:
    """The configuration of the model that runs the engine, on the target of the engine."""
    options = [option.inner_tensor for option in tensors.OPTIONS]
    inputs = (tensors.INPUT_IDS, tensors.INPUT_LENGTHS, *options, tensors.STOP_WORD_IDS, tensors.BAD_WORD_IDS)
    outputs = (*tensors.OUTPUTS, tensors.PROMPT_IDS, tensors.GENERATED_TEXT)
    return {
        **_python(TENSORRT_LLM, target, inputs, outputs, {"engine_dir": engine_dir}),
        "model_transaction_policy": {"decoupled": True},
    }


def postprocessing(tokenizer_dir: str) -> Message:
    """The configuration of the model that assembles an answer's text."""
    inputs, outputs = (tensors.POST_PROMPT, tensors.POST_TEXT), (tensors.OUTPUT,)
    return _python(POSTPROCESSING, Target("cpu"), inputs, outputs, {"tokenizer_dir": tokenizer_dir})


def ensemble() -> Message:
    """The configuration of the model from text to text, through the other three.

    Triton wants all inputs of a step to come from the same responses: postprocessing cannot read the request itself.
    """
    steps = (
        _Step(
            PREPROCESSING,
            {tensors.QUERY: tensors.PROMPT.name},
            {tensors.INPUT_ID: "_INPUT_ID", tensors.REQUEST_INPUT_LEN: "_REQUEST_INPUT_LEN"},
        ),
        _Step(
            TENSORRT_LLM,
            {
                tensors.INPUT_IDS: "_INPUT_ID",
                tensors.INPUT_LENGTHS: "_REQUEST_INPUT_LEN",
                **{option.inner_tensor: option.name for option in tensors.OPTIONS},
            },
            {
                **{output: output.name for output in tensors.OUTPUTS},
                tensors.PROMPT_IDS: "_PROMPT_IDS",
                tensors.GENERATED_TEXT: "_GENERATED_TEXT",
            },
        ),
        _Step(
            POSTPROCESSING,
            {tensors.POST_PROMPT: "_PROMPT_IDS", tensors.POST_TEXT: "_GENERATED_TEXT"},
            {tensors.OUTPUT: tensors.TEXT_OUTPUT.name},
        ),
    )
    inputs = (tensors.PROMPT, *(option.outer_tensor for option in tensors.OPTIONS))
    return {
        "name": ENSEMBLE,
        "platform": "ensemble",
        "max_batch_size": _MAX_BATCH_SIZE,
        "input": [_tensor(tensor) for tensor in inputs],
        "output": [_tensor(tensor) for tensor in (tensors.TEXT_OUTPUT, *tensors.OUTPUTS)],
        "ensemble_scheduling": {"step": [_step(step) for step in steps]},
    }


def _python(
    name: str, target: Target, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Mapping[str, str]
) -> Message:
    """The configuration of a model of the Python backend, in one process."""
    if target.kind == "cpu":
        group: Message = {"count": 1, "kind": Enum("KIND_CPU")}
    else:  # without a list of GPUs there would be an instance on each GPU
        group = {"count": 1, "kind": Enum("KIND_GPU"), "gpus": (0,)}
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": _MAX_BATCH_SIZE,
        "input": [_tensor(tensor) for tensor in inputs],
        "output": [_tensor(tensor) for tensor in outputs],
        "instance_group": [group],
        "parameters": [{"key": key, "value": {"string_value": value}} for key, value in parameters.items()],
    }


def _tensor(tensor: Tensor) -> Message:
    fields: Message = {"name": tensor.name, "data_type": Enum(f"TYPE_{tensor.dtype}"), "dims": tensor.dims}
    return {**fields, "optional": True} if tensor.optional else fields


def _step(step: _Step) -> Message:
    return {
        "model_name": step.model,
        "model_version": -1,  # the newest version
        "input_map": [{"key": tensor.name, "value": name} for tensor, name in step.inputs.items()],
        "output_map": [{"key": tensor.name, "value": name} for tensor, name in step.outputs.items()],
    }
