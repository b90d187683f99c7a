"""Collects the facts about an engine to compare, by section and name, with whether each can change results."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from trtllm_lite._core import crc32c
from trtllm_lite.common.vocabulary import STEP_INPUTS, STORED_BYTES, num_bytes
from trtllm_lite.engine.arena_use import touched
from trtllm_lite.engine.format import CUBIN_PREFIX, NETWORK_PREFIX, WEIGHT_PREFIX
from trtllm_lite.engine.manifest import Manifest, Tactic
from trtllm_lite.engine.plan import CompiledKernel, Instruction, Plan, PlanTensor, Program
from trtllm_lite.engine.reader import EngineFile
from trtllm_lite.engine.records import json_text, to_json
from trtllm_lite.engine.state_facts import state_facts
from trtllm_lite.plugins.sample.records import EDIT, record

# Facts about the cache's capacity: it bounds how many sequences run at once, and does not change the results of a
# sequence.
_CAPACITY_OF_CACHE = ("num_blocks", "bytes_per_block")
_SAMPLING_SLOTS = "sampling_slots"
_KEY_DIGITS = 16  # digits of a cubin's key, enough to tell two apart


class Fact(NamedTuple):
    """A fact; ``note`` explains ``value``: facts that differ only in their notes change no results."""

    section: str
    name: str
    value: Any
    changes_results: bool
    note: str = ""

    def shown(self) -> Any:
        """The value for people, with its note."""
        return f"{self.value}: {self.note}" if self.note else self.value


def facts_of(engine: EngineFile) -> Iterator[Fact]:
    """All facts, section by section; :func:`~trtllm_lite.engine.difference.compare_engines` says what they mean."""
    manifest, plan = engine.manifest, engine.plan
    yield from _model_facts(manifest)
    yield Fact("quantization", "qformat", manifest.qformat, True)
    yield from _limit_facts(manifest, plan)
    for name, value in to_json(manifest.kv_cache).items():
        yield Fact("kv_cache", name, value, name not in _CAPACITY_OF_CACHE)
    for name, value in to_json(manifest.target).items():
        yield Fact("target", name, value, True)
    yield from _kernel_facts(engine)
    yield from _tactic_facts("tactics", manifest.tactics)
    if plan.cuda is not None:
        yield Fact("tactics", "workspace_bytes of cuBLASLt", plan.cuda.workspace_bytes, True)
        yield Fact("tactics", "version of cuBLASLt", plan.cuda.cublaslt_version, True)
    for fusion in manifest.fusions:
        made = "fused" if fusion.fused else "not fused"
        yield Fact("fusions", f"{fusion.pass_name} {fusion.site}", made, True, fusion.reason)
    yield from _tactic_facts("expansions", manifest.expansions)
    yield from _weight_facts(engine)
    for name, value in to_json(manifest.memory).items():
        yield Fact("memory", name, value, False)
    for name, value in ({} if manifest.accuracy is None else to_json(manifest.accuracy)).items():
        yield Fact("accuracy", name, value, False)
    for name, value in state_facts(manifest.state_rounding, manifest.state_forms).items():
        yield Fact("states", name, value, False)
    for plugin in manifest.plugins:
        yield Fact("plugins", plugin.package, f"{plugin.version}: {', '.join(plugin.operators)}", True)
    yield Fact("producer", "engine", manifest.producer, False)
    yield Fact("producer", "checkpoint", manifest.model.producer, False)
    for name, checksum in manifest.files.items():
        yield Fact("files", name, f"CRC-32C {checksum}", True)


def _model_facts(manifest: Manifest) -> Iterator[Fact]:
    for name, value in to_json(manifest.model).items():
        if name != "producer":
            yield Fact("model", name, value, True)
    yield Fact("model", "num_parameters", manifest.num_parameters, False)


def _limit_facts(manifest: Manifest, plan: Plan) -> Iterator[Fact]:
    for name, value in to_json(manifest.limits).items():
        yield Fact("limits", name, value, False)
    yield Fact("limits", "gather_context_logits", manifest.gather_context_logits, False)
    yield Fact("limits", "enable_prompt_embeds", manifest.enable_prompt_embeds, False)
    yield Fact("limits", "deterministic", manifest.deterministic, True)
    yield Fact("limits", "tp_size", manifest.mapping.tp_size, True)
    yield Fact("limits", "pp_size", manifest.mapping.pp_size, True)
    yield Fact("limits", "moe_ep_size", manifest.mapping.moe_ep_size, True)
    yield Fact("limits", "allreduce_strategy", manifest.allreduce_strategy, True)
    if manifest.lora is not None:
        yield Fact("limits", "max_lora_rank", manifest.lora.max_rank, False)
    if plan.cuda is not None:
        yield Fact("limits", "decode_batches", list(plan.cuda.decode_batches), False)
        yield Fact("limits", "edits of logits on the GPU", _room_for_edits(plan), False)
    for program in plan.programs:
        yield Fact("limits", f"max_tokens of program {program.name} ({program.arch})", program.max_tokens, False)


def _kernel_facts(engine: EngineFile) -> Iterator[Fact]:
    for kernel in engine.plan.kernels:
        keys = ", ".join(f"{arch} from {key[:_KEY_DIGITS]}" for arch, key in kernel.cubins.items())
        yield Fact("kernels", kernel.name, _compiled(engine, kernel), True, keys)
    for program in engine.plan.programs:
        yield Fact("kernels", f"program {program.name} ({program.arch})", _instructions(engine, program), True)
    for name, entry in engine.tensors.items():
        if name.startswith(NETWORK_PREFIX):  # includes its weights; TensorRT numbers dimensions anew in each build
            yield Fact("kernels", name, f"{entry.num_bytes:,} B, CRC-32C {engine.checksum(name)}", True)


def _compiled(engine: EngineFile, kernel: CompiledKernel) -> str:
    """A kernel, described by the content of its cubins and its launch configuration."""
    cubins = (f"{arch} CRC-32C {engine.checksum(CUBIN_PREFIX + key)}" for arch, key in kernel.cubins.items())
    return ", ".join((*cubins, f"{kernel.threads} threads", f"{kernel.shared_bytes} B shared"))


def _instructions(engine: EngineFile, program: Program) -> str:
    """Checksums of all instructions in order, and of the instructions of each operator, to locate differences."""
    by_name: dict[str, list[Any]] = {}
    resolved = [_resolved(engine, _named(engine.plan, instruction)) for instruction in program.instructions]
    for instruction, plain in zip(program.instructions, resolved, strict=True):
        by_name.setdefault(engine.plan.name_of(instruction), []).append(plain)
    parts = {"instructions": resolved, **by_name}
    return ", ".join(f"{len(alike)} {name} CRC-32C {_digest(alike)}" for name, alike in parts.items())


def _digest(data: Any) -> str:
    return f"{crc32c(json.dumps(data, sort_keys=True).encode()):08x}"


def _named(plan: Plan, instruction: Instruction) -> Any:
    """An instruction as JSON, in which a sampling kernel's argument for the room for edits is named."""
    plain = to_json(instruction)
    if "args" in plain and plan.outputs.get(_SAMPLING_SLOTS) in touched(instruction):
        room = {"int": _room_for_edits(plan)}
        plain["args"] = [{"int": "room for edits"} if argument == room else argument for argument in plain["args"]]
    return plain


def _room_for_edits(plan: Plan) -> int | None:
    """The edits that a request's sampling record has room for (None on a CPU, whose sampler has no records).

    The number follows from max_seq_len. Requests with more edits are sampled on the host, where the same rounding draws
    the same token, so the number is a capacity and does not change results.
    """
    index = plan.outputs.get(_SAMPLING_SLOTS)
    words = None if index is None else plan.tensors[index].shape[-1]
    return (words * STORED_BYTES["I32"] - record(0).itemsize) // EDIT.itemsize if isinstance(words, int) else None


def _resolved(engine: EngineFile, data: Any) -> Any:
    """Instructions as JSON, in which tensors and kernels are described instead of numbered.

    Offsets in the arena are left out, because they depend on limits.
    """
    plan = engine.plan

    def entry(key: str, value: Any) -> Any:
        if key == "tensor":
            return _described(plan.tensors[value])
        if key == "operands":
            return {name: _described(plan.tensors[index]) for name, index in value.items()}
        if key == "kernel":
            return _compiled(engine, plan.kernels[value])
        return _resolved(engine, value)

    if isinstance(data, dict):
        if data.keys() == {"tensor", "offset"}:
            data = data | {"offset": _in_rows(plan.tensors[data["tensor"]], data["offset"])}
        return {key: entry(key, value) for key, value in data.items()}
    return [_resolved(engine, item) for item in data] if isinstance(data, list) else data


def _described(tensor: PlanTensor) -> str:
    """A tensor without its place. Step inputs and sampling records are equal for all widths that limits give them."""
    if _is_step_input(tensor) or (tensor.kind, tensor.name) == ("state", _SAMPLING_SLOTS):
        return tensor.name
    return f"{tensor.name} {tensor.dtype} {json_text(tensor.shape)} {tensor.layout}"


def _in_rows(tensor: PlanTensor, offset: Any) -> Any:
    """An offset, as JSON; in a step input it counts whole rows if possible, because their width depends on limits."""
    rest = tensor.shape[1:]
    if not _is_step_input(tensor) or not all(isinstance(extent, int) and extent > 0 for extent in rest):
        return offset
    width = num_bytes(tensor.dtype, [extent for extent in rest if isinstance(extent, int)])
    terms = [] if isinstance(offset, int) else offset["terms"]
    const = offset if isinstance(offset, int) else offset["const"]
    whole = all(multiplier % width == 0 and divisor == 1 for _, multiplier, divisor in terms)
    if const % width or not whole:
        return offset
    return {"rows": const // width, "terms": [[name, multiplier // width] for name, multiplier, _ in terms]}


def _is_step_input(tensor: PlanTensor) -> bool:
    return tensor.kind == "input" and any(tensor.name == given.name for given in STEP_INPUTS)


def _tactic_facts(section: str, tactics: Iterable[Tactic]) -> Iterator[Fact]:
    for tactic in tactics:
        yield Fact(section, tactic.site, tactic.choice, True, tactic.reason)


def _weight_facts(engine: EngineFile) -> Iterator[Fact]:
    stripped = engine.manifest.stripped
    yield Fact("weights", "stripped", stripped, True)
    for tensor in engine.plan.tensors:
        if tensor.kind == "weight":
            data = "not in the file" if stripped else f"CRC-32C {engine.checksum(WEIGHT_PREFIX + tensor.name)}"
            kind = f"{tensor.dtype} {json_text(tensor.shape)} {tensor.layout}"
            yield Fact("weights", tensor.name, f"{kind}, {data}", True)
