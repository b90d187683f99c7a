"""Runs the passes with the verifier between them."""

from collections.abc import Sequence
from itertools import chain

import onnx_ir as ir

from trtllm_lite.builder.cache_dtype import cache_dtype_of
from trtllm_lite.builder.cache_groups import assign_cache_groups
from trtllm_lite.builder.job import Fused
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.passes import ENCODER_PIPELINE, PIPELINE, TOWER_PIPELINE, GraphPass, PassError
from trtllm_lite.builder.passes.chosen_frequencies import chosen_frequencies
from trtllm_lite.builder.passes.features import has_features
from trtllm_lite.builder.passes.installed import installed_passes
from trtllm_lite.builder.passes.lora import Projection, lora_pass, projections_of
from trtllm_lite.builder.passes.merge_projections import MERGE_PROJECTIONS
from trtllm_lite.builder.passes.merge_rows import merged_rows
from trtllm_lite.builder.passes.recurrent_pattern import make_room_for_drafts
from trtllm_lite.builder.passes.remove_padding import REMOVE_PADDING
from trtllm_lite.builder.passes.shared_experts import SHARED_EXPERTS
from trtllm_lite.builder.passes.token_rows import TAKE_TOKEN_ROWS
from trtllm_lite.builder.verifier import violations
from trtllm_lite.common.vocabulary import STATE, VISION_TOWER
from trtllm_lite.engine.manifest import Fusion
from trtllm_lite.errors import BuildError
from trtllm_lite.network.module_kinds import ModuleKind, module_kind
from trtllm_lite.plugins.schema import DOMAIN, DOMAIN_VERSION, network_schemas

_MAX_LISTED = 40


def run_passes(model: ir.Model, passes: Sequence[GraphPass] = PIPELINE) -> tuple[ir.Model, list[Fusion]]:
    """Return the rewritten model and every fusion decision, in order; ``model`` is left unchanged.

    The graph is verified after each pass that has fused something, and at the end.
    Raises BuildError if ``model`` is malformed, or (a defect of a pass) if a pass breaks its contract or the graph.
    """
    broken = list(violations(model))
    if broken:
        raise BuildError(f"network.onnx is not a valid network: {_listed(broken)}. Convert the checkpoint again")
    model = model.clone()
    model.graph.opset_imports[DOMAIN] = DOMAIN_VERSION
    fusions: list[Fusion] = []
    done: list[str] = []
    unverified: list[str] = []
    for graph_pass in passes:
        try:
            decisions = graph_pass(model.graph)
        except PassError as error:
            raise _defect(str(error), done) from error
        unverified.append(graph_pass.name)
        if graph_pass is passes[-1] or any(decision.fused for decision in decisions):
            broken = list(violations(model))
            if broken:
                raise _defect(f"the pass {' or '.join(unverified)} broke the graph: {_listed(broken)}", done)
            done += unverified
            unverified.clear()
        fusions += [Fusion(graph_pass.name, d.site, d.fused, d.reason) for d in decisions]
    called = {node.op_identifier() for node in model.graph}
    for key in [key for key in model.functions if key not in called]:
        del model.functions[key]
    return model, fusions


def passes_of(kind: ModuleKind, max_seq_len: int) -> tuple[GraphPass, ...]:
    """The passes for all networks of a ``kind``, for engines of sequences of up to ``max_seq_len`` tokens."""
    of_encoders = TOWER_PIPELINE if kind.name == VISION_TOWER else ENCODER_PIPELINE
    usual = of_encoders if kind.whole_prompts else (chosen_frequencies(max_seq_len), *PIPELINE)
    begin = usual.index(REMOVE_PADDING) + 1
    return (*usual[:begin], *installed_passes(), *usual[begin:])


def fuse_into_plugins(network: ir.Model, kv_cache_dtype: str, limits: BuildLimits) -> Fused:
    """Return the network in operators of ``plugins/`` only; a decoder has a paged KV cache. Raises BuildError."""
    kind = module_kind(network.graph)
    fuse = _fuse_encoder if kind.whole_prompts else _fuse_decoder
    return fuse(network, passes_of(kind, limits.max_seq_len), kv_cache_dtype, limits)


def _fuse_decoder(network: ir.Model, usual: Sequence[GraphPass], kv_cache_dtype: str, limits: BuildLimits) -> Fused:
    projections: list[Projection] = []
    passes = list(usual)
    if limits.max_lora_rank or limits.tp_size > 1:
        passes.remove(SHARED_EXPERTS)  # adapters change shared experts alone, ranks split them in another way
    if limits.max_lora_rank:
        passes.remove(MERGE_PROJECTIONS)  # adapters change one projection at a time
        passes.append(lora_pass(projections_of(network), limits.max_lora_rank, projections))
    if limits.enable_prompt_embeds:
        passes.append(TAKE_TOKEN_ROWS)
    model, fusions = run_passes(network, passes)
    check_all_fused(model, fusions)
    make_room_for_drafts(model.graph, limits.max_draft_len)
    groups = assign_cache_groups(model.graph, limits.max_seq_len)
    attending = [group for group in groups if group.kind != STATE]
    if has_features(model.graph) and (len(attending) > 1 or attending[0].window):
        raise BuildError(
            "the network has features for a head or a layer that drafts (EAGLE-3, MTP), and attention windows: "
            "expected a model without windows; convert it without --draft_model_dir"
        )
    adapted = tuple(one.rows for one in projections)
    return Fused(model.graph, tuple(fusions), groups, cache_dtype_of(model.graph, kv_cache_dtype), adapted)


def _fuse_encoder(network: ir.Model, usual: Sequence[GraphPass], kv_cache_dtype: str, _: BuildLimits) -> Fused:
    model, fusions = run_passes(network, usual)
    check_all_fused(model, fusions)
    tokens_per_row = merged_rows(model.graph) if module_kind(network.graph).name == VISION_TOWER else 0
    return Fused(model.graph, tuple(fusions), (), kv_cache_dtype, tokens_per_row=tokens_per_row)


def check_all_fused(model: ir.Model, fusions: Sequence[Fusion]) -> None:
    """Raise one BuildError that lists every unfused standard operator, its place, and why it was not fused."""
    left = [node for node in model.graph if node.domain != DOMAIN]
    if not left:
        return
    concerned = [fusion for fusion in fusions if not fusion.fused and any(_is_at(node, fusion.site) for node in left)]
    reasons = [f"{fusion.site}: {fusion.reason} ({fusion.pass_name})" for fusion in concerned]
    nodes = [f"{node.op_type} at {node.name}" for node in left]
    raise BuildError(
        f"the network has {len(left)} operators that do not fit a fused operator: {_listed(nodes)}. "
        + (f"Fusions that did not apply: {_listed(reasons)}. " if reasons else "")
        + f"Supported are models whose layers fuse into {', '.join(network_schemas())}; "
        "change the network, or add a plugin and a pass for these operators (docs/contributing/out-of-tree.md)"
    )


def _is_at(node: ir.Node, site: str) -> bool:
    return node.name == site or str(node.name).startswith(f"{site}.")


def _listed(items: Sequence[str]) -> str:
    more = [f"and {len(items) - _MAX_LISTED} more"] if len(items) > _MAX_LISTED else []
    return "; ".join(chain(items[:_MAX_LISTED], more))


def _defect(message: str, done: Sequence[str]) -> BuildError:
    before = f"after {', '.join(done)}" if done else "as the first pass"
    return BuildError(f"{message} ({before}). This is a defect of trtllm_lite: please report it with network.onnx")
