"""A model that does not match its family is refused before anything is written, by one error with all differences."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from tests.models import save_tiny_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.family import all_families, find_model_type
from trtllm_lite.convert.mapping import map_model, open_source
from trtllm_lite.convert.matching import fold
from trtllm_lite.errors import ConvertError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny Llama's directory."""
    save_tiny_model("llama", tmp_path / "model", tie_word_embeddings=False)
    return tmp_path / "model"


def _edit_tensors(model: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors by name (``__`` for a dot); None removes one."""
    tensors = load_file(model / "model.safetensors")
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


def _edit_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def _fails(model: Path, *messages: str, dtype: str = "auto") -> None:
    output = model.parent / "checkpoint"
    with pytest.raises(ConvertError) as caught:
        convert_checkpoint(str(model), output, dtype)
    for message in messages:
        assert message in str(caught.value)
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_all_differing_tensors_are_listed_at_once(model: Path) -> None:
    _edit_tensors(
        model,
        model__layers__0__mlp__up_proj__weight=None,
        model__layers__2__mlp__up_proj__weight=None,
        model__norm__weight=torch.ones(61),
        model__layers__1__self_attn__q_norm__weight=torch.ones(10),
        score__weight=torch.ones(2, 60),
    )
    _fails(
        model,
        "missing (2): model.layers.{0,2}.mlp.up_proj.weight",
        "unused (2): model.layers.1.self_attn.q_norm.weight, score.weight",
        "wrong shape (1): model.norm.weight (expected [60], found [61])",
    )


def test_a_mislabelled_model_names_the_family_that_fits(model: Path) -> None:
    _edit_config(model, architectures=["Qwen3ForCausalLM"])
    _fails(
        model, "missing (6)", "model.layers.{0-2}.self_attn.k_norm.weight", "nearest family: llama (0 tensors differ)"
    )


def test_an_unknown_architecture_names_the_nearest_and_where_the_others_are_listed(model: Path) -> None:
    _edit_config(model, architectures=["LlamoForCausalLM"])
    _fails(
        model,
        "architecture LlamoForCausalLM is not supported, expected one of those that docs/reference/families.md lists\n",
        "  nearest by name: LlamaForCausalLM, ",
        "\n  nearest by tensors: the family llama (all its tensors fit)\n",
        "  to add a family: docs/contributing/family.md, in a package of your own: docs/contributing/out-of-tree.md",
    )
    documents = Path(__file__).parents[3] / "docs"
    assert (documents / "reference" / "families.md").is_file()
    assert (documents / "contributing" / "family.md").is_file()


def test_an_unknown_architecture_lists_what_the_nearest_family_does_not_know(model: Path) -> None:
    _edit_config(model, architectures=["LlamoForCausalLM"], flavour="sweet", num_experts=4)
    _edit_tensors(model, model__layers__1__mlp__router__weight=torch.ones(4, 60), model__norm__weight=None)
    _fails(
        model,
        "nearest by tensors: the family llama (2 of its tensors differ)\n",
        "missing (1): model.norm.weight",
        "unused (1): model.layers.1.mlp.router.weight",
        "unknown config keys: flavour, num_experts",
    )


@pytest.mark.parametrize("architectures", [None, []])
def test_the_model_type_stands_for_an_absent_architecture(model: Path, architectures: Any) -> None:
    _edit_config(model, architectures=architectures)
    assert convert_checkpoint(str(model), model.parent / "a").config.architecture == "LlamaForCausalLM"
    _edit_config(model, architectures=architectures, model_type="llamo")
    with pytest.raises(ConvertError, match=r"(?s)architecture llamo is not supported, .* the family llama"):
        convert_checkpoint(str(model), model.parent / "b")


UNKNOWN = ("mimo", "internlm2")  # transformers lacks these


def test_every_family_is_found_by_its_model_type() -> None:
    known = [family for family in all_families().values() if not family.drafts and family.name not in UNKNOWN]
    for family in known:
        config = AutoConfig.for_model(family.model_type or family.name)
        assert find_model_type(config.model_type) is family


def test_more_layers_than_tensors_are_refused_before_a_network_is_built(model: Path) -> None:
    _edit_config(model, num_hidden_layers=4096)
    _fails(model, "says 4096 layers, but there are 30 tensors", "the config is another model's")


def test_that_a_model_is_not_supported_comes_before_what_its_files_lack(model: Path) -> None:
    _edit_config(model, architectures=["LlamoForCausalLM"], num_hidden_layers=64)
    _fails(model, "architecture LlamoForCausalLM is not supported")
    (model / "model.safetensors").unlink()
    _fails(model, "architecture LlamoForCausalLM is not supported", "nearest by name: LlamaForCausalLM")
    (model / "pytorch_model.bin").touch()
    _fails(model, "architecture LlamoForCausalLM is not supported")
    _edit_config(model, architectures=["LlamaForCausalLM"])
    _fails(model, "found only pickles (pytorch_model.bin)")


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ConvertError, match="to be a directory or a file, but"):
        open_source(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("architectures", ["LlamaForCausalLM", [7]])
def test_an_unnamed_architecture_is_an_error(model: Path, architectures: Any) -> None:
    _edit_config(model, architectures=architectures)
    _fails(model, "to name a class")


def test_unmapped_config_keys_are_an_error(model: Path) -> None:
    _edit_config(model, attention_chunk_size=8, embedding_multiplier=12.0)
    _fails(model, "attention_chunk_size", "embedding_multiplier: 12.0 is not mapped")


def test_an_unknown_dtype_is_an_error(model: Path) -> None:
    _fails(model, "one of auto, auto_16_bits, float32, float16, bfloat16, found 'int8'", dtype="int8")


@pytest.mark.parametrize("own", [torch.float32, torch.float16, torch.bfloat16])
def test_engines_of_16_bits_are_made_of_any_model(model: Path, own: torch.dtype) -> None:
    tensors = load_file(model / "model.safetensors")
    _edit_tensors(model, **{name.replace(".", "__"): tensor.to(own) for name, tensor in tensors.items()})
    name = str(own).removeprefix("torch.")
    source = open_source(model)
    assert map_model(source, "auto").dtype == name
    assert map_model(source, "auto_16_bits").dtype == ("bfloat16" if own == torch.float32 else name)


def test_old_rotary_buffers_are_ignored(model: Path) -> None:
    _edit_tensors(model, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(5))
    convert_checkpoint(str(model), model.parent / "checkpoint")


def test_a_tied_model_may_repeat_its_embedding_but_not_contradict_it(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    embedding = load_file(tmp_path / "model" / "model.safetensors")["model.embed_tokens.weight"]
    _edit_tensors(tmp_path / "model", lm_head__weight=embedding + 1)
    _fails(tmp_path / "model", "unused (1): lm_head.weight")
    _edit_tensors(tmp_path / "model", lm_head__weight=embedding)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")


def test_overflow_to_float16_lists_the_tensors(model: Path) -> None:
    big = torch.full((60, 60), 1e5)
    _edit_tensors(
        model, model__layers__0__self_attn__q_proj__weight=big.clone(), model__layers__1__self_attn__q_proj__weight=big
    )
    _fails(
        model,
        "beyond float16's largest, 65504: model.layers.{0-1}.self_attn.q_proj.weight",
        "bfloat16",
        dtype="float16",
    )
    convert_checkpoint(str(model), model.parent / "checkpoint", "bfloat16")


def test_names_are_folded_by_layer() -> None:
    names = [f"m.{layer}.x" for layer in (0, 1, 2, 5, 10)] + ["m.3.y", "norm"]
    assert fold(names) == ["m.{0-2,5,10}.x", "m.3.y", "norm"]


def test_names_of_experts_are_folded_by_expert_and_layer() -> None:
    names = [f"m.{layer}.experts.{expert}.up" for layer in range(3) for expert in range(11)]
    names += ["m.4.experts.1.up", "m.0.norm", "m.2.norm"]
    assert fold(names) == ["m.{0-2}.experts.{0-10}.up", "m.{0,2}.norm", "m.4.experts.1.up"]


_PLUGIN = """
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts

NAMES = {**TENSOR_NAMES, "final_norm": "model.last_norm"}


def read_model(config):
    parts = LlamaParts.read(config, names=NAMES)

    def layer(tensors, number):
        attention = parts.attention(parts.projections(tensors))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(name="acme", architectures=("AcmeForCausalLM",), read_model=read_model, tensor_names=NAMES)
"""


def test_another_package_can_register_a_family(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "acme-1.0.dist-info").mkdir(parents=True)
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text("[trtllm_lite.families]\nacme = acme_family:FAMILY\n")
    (site / "acme_family.py").write_text(_PLUGIN)
    tensors = load_file(model / "model.safetensors")
    _edit_tensors(model, model__norm__weight=None, model__last_norm__weight=tensors["model.norm.weight"])
    _edit_config(model, architectures=["AcmeForCausalLM"])
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    all_families.cache_clear()
    try:
        assert convert_checkpoint(str(model), tmp_path / "checkpoint").config.family == "acme"
    finally:
        all_families.cache_clear()
        sys.modules.pop("acme_family", None)
