"""GPU plans of a model and of its draft head, executed from their bytes over one cache of features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import qwen_mtp
from tests.eagle import FOR_GPU, NUM_LAYERS, TorchHead, save_tiny_head
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.mtp import TorchPredictor, save_tiny_mimo
from tests.tolerances import GPU_TOLERANCES, assert_close
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from trtllm_lite.builder.cache_groups import assign_cache_groups
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.builder.cuda.engine import cuda_memory
from trtllm_lite.builder.cuda.planning import lower_network
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.common.vocabulary import FEATURES
from trtllm_lite.convert import convert_checkpoint

PAGE, COLUMNS = 16, 4
LIMITS = BuildLimits(max_batch_size=3, max_input_len=40, max_seq_len=PAGE * COLUMNS, tokens_per_block=PAGE)
TABLE = np.array([[5, 0, 7, 2]], np.int32)  # block table of one sequence


class Card:
    """A checkpoint as a GPU engine, which reads the features of ``lender`` if one is given."""

    def __init__(self, checkpoint: Path, target: str, lender: "Card | None" = None) -> None:
        opened = open_checkpoint(checkpoint)
        graph = run_passes(opened.model)[0].graph
        limits = replace(LIMITS, cache_groups=assign_cache_groups(graph, LIMITS.max_seq_len))
        devices = parse_targets([target])
        kind, dtype = opened.kind.name, opened.config.dtype
        self.lowered = lower_network(graph, kind, dtype, limits, devices)
        self.memory = cuda_memory(graph, kind, dtype, limits, devices)
        self.machine = CudaInterpreter(self.lowered)
        self.tables = TABLE
        if len(limits.cache_groups) > 1:  # the state lies behind the blocks of the attention layers
            self.tables = np.array([TABLE[0], np.full(COLUMNS, TABLE.max() + 1)], np.int32)
        (self.index,) = (i for i, tensor in enumerate(self.machine.plan.tensors) if tensor.name == FEATURES)
        if lender is not None:
            self.machine.features = lender.machine.features

    def step(self, tokens: list[int], past: int, num_logits: int, program: str = "mixed") -> np.ndarray:
        """Logits of the last ``num_logits`` tokens of a step."""
        count = len(tokens)
        ints = {
            "token_ids": tokens,
            "token_slots": [-1] * count,
            "position_ids": range(past, past + count),
            "cu_seqlens": [0, count],
            "past_lens": [past],
            "logits_indices": range(count - num_logits, count),
            "sample_slots": [-1] * num_logits,
            "sample_drafts": [-1] * num_logits,
        }
        inputs = {name: np.array(values, np.int32) for name, values in ints.items()}
        return self.machine.step({**inputs, "block_tables": self.tables}, program)

    def features(self, count: int) -> np.ndarray:
        """The sequence's cached features, float32 [count, hidden]."""
        shape = self.machine.plan.tensors[self.index].shape
        kept = self.machine.features.view("u2").reshape(-1, *shape[1:])
        bits = kept[TABLE[0]].reshape(-1, shape[-1])[:count].astype(np.uint32)
        return (bits << 16).view(np.float32)  # from bfloat16


def save_models(method: str, root: Path) -> TorchHead | TorchPredictor:
    """Convert a model to ``of_model``, and its head or draft layer to ``of_head``."""
    reference: TorchHead | TorchPredictor
    if method == "mimo":
        reference, head = save_tiny_mimo(root / "model", FOR_GPU, torch.bfloat16), "model"
    elif method != "eagle3":
        sizes = qwen_mtp.FOR_GPU
        reference, head = qwen_mtp.save_tiny_qwen(method, root / "model", dtype=torch.bfloat16, **sizes), "model"
    else:
        shape, head = {"num_hidden_layers": NUM_LAYERS, **FOR_GPU.of_model()}, "head"
        model = save_tiny_model("llama", root / "model", dtype=torch.bfloat16, **shape).float()
        reference = TorchHead(save_tiny_head(root / head, shape=FOR_GPU, dtype=torch.bfloat16), model, shape=FOR_GPU)
    convert_checkpoint(str(root / "model"), root / "of_model", draft_model_dir=str(root / head))
    convert_checkpoint(str(root / head), root / "of_head", target_model_dir=str(root / "model"))
    return reference


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("method", ["eagle3", "mimo", "qwen3_5"])
def test_a_head_reads_what_its_model_keeps(method: str, target: str, tmp_path: Path) -> None:
    reference = save_models(method, tmp_path)
    kept = Card(tmp_path / "of_model", target)
    head = Card(tmp_path / "of_head", target, lender=kept)
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 37).tolist()
    kept.step(tokens[:21], 0, 1)
    kept.step(tokens[21:36], 21, 1)  # the newest token is not computed when a head drafts its successor
    kept.step(tokens[36:], 36, 1, "decode_1")
    features, follow = reference.features(tokens), tokens[1:]
    assert_close(kept.features(37), features.numpy(), "bfloat16", FEATURES, GPU_TOLERANCES)
    features, known = features[:-1], reference.known.numpy()
    head.step(tokens[:18], 0, 0)
    found = head.step(tokens[18:], 18, 1)
    for drafted in (9, 300, 44, 5):
        hidden = reference.hidden(features, follow)
        expected = reference.logits(hidden)[-1:].numpy()
        assert_close(found[:, known], expected, "bfloat16", table=GPU_TOLERANCES)
        assert np.all(np.delete(found, known, axis=1) < -1e29)
        features, follow = torch.cat([features, hidden[-1:]]), [*follow, drafted]
        assert_close(kept.features(len(follow)), features.numpy(), "bfloat16", FEATURES, GPU_TOLERANCES)
        found = head.step([drafted], len(follow), 1, "decode_1")
    assert {"paged_load", "paged_store"} <= set(head.machine.ran)


def test_memory_of_features_is_that_of_the_model(tmp_path: Path) -> None:
    save_models("eagle3", tmp_path)
    kept, head = (Card(tmp_path / name, "sm_90") for name in ("of_model", "of_head"))
    layer = 2 * FOR_GPU.kv_heads * FOR_GPU.head_dim * 2 * PAGE
    blocks = kept.machine.plan.symbols["num_blocks"] + 1  # one for padding
    assert kept.memory.kv_cache == blocks * (NUM_LAYERS * layer + FOR_GPU.hidden * 2 * PAGE)
    assert head.memory.kv_cache == blocks * layer
