"""Encoders from a Hugging Face directory to ``LLM.embed``, against transformers."""

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from tests.e2e.llm import random_prompts
from tests.encoders import expected_rows, write_pooling
from tests.models import ENCODER_FAMILIES, VOCAB_SIZE, round_matrices, save_tiny_model, tiny_config
from tests.real_models import CACHE, FILES
from tests.tolerances import assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite._core import EncoderLoop, Engine
from trtllm_lite._testing import PacedExecutor
from trtllm_lite.builder import build_engine
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.families import mpnet
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.errors import ArgumentError, BuildError, ConvertError, EngineError, LimitError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.triton.repository import write_repository
from trtllm_lite.workflows.inspect import inspect_path

LIMITS = {"max_batch_size": 5, "max_input_len": 64, "max_seq_len": 64, "max_num_tokens": 100}
# Texts contain no padding tokens, for which transformers has no positions.
TEXTS = [[3 if token in (1, 2) else token for token in text] for text in random_prompts(seed=0, count=23)]
POOLINGS: dict[str, dict[str, bool]] = {
    "mean": {},
    "mean-normalized": {"normalize": True},
    "first-normalized": {"first": True, "normalize": True},
}


def _save(family: str, directory: Path, pooling: dict[str, bool], **arguments: Any) -> PreTrainedModel:
    model = save_tiny_model(family, directory, **arguments)
    if pooling:
        first = pooling.get("first", False)
        write_pooling(directory, pooling_mode_mean_tokens=not first, pooling_mode_cls_token=first)
    return model


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_network_on_onnxruntime(family: str, pooling: str, tmp_path: Path) -> None:
    """Texts are padded with an ordinary token, so that a result that depends on padding shows."""
    model = _save(family, tmp_path / "model", POOLINGS[pooling])
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    session = onnxruntime.InferenceSession(str(tmp_path / "checkpoint" / "network.onnx"))
    texts = TEXTS[:5]
    ids = np.full((len(texts), max(map(len, texts))), VOCAB_SIZE - 1)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    lengths = np.array([len(text) for text in texts])
    feed = {"input_ids": ids, "position_ids": np.ascontiguousarray(positions), "seq_lens": lengths}
    (rows,) = session.run(["sentence_embedding"], feed)
    assert_close(rows, expected_rows(model, texts, **POOLINGS[pooling]), what="embeddings")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_engine(family: str, pooling: str, dtype: str, tmp_path: Path) -> None:
    model = round_matrices(_save(family, tmp_path / "model", POOLINGS[pooling]), dtype)
    with LLM(tmp_path / "model", dtype=dtype, **LIMITS) as llm:
        rows = np.array(llm.embed(TEXTS), np.float32)
    expected = expected_rows(model, TEXTS, **POOLINGS[pooling])
    assert rows.shape == (len(TEXTS), model.config.hidden_size)
    if dtype == "float32":
        assert_close(rows, expected, what="embeddings")
    else:  # some machines round activations to bfloat16, too
        assert (rows * expected).sum() / np.linalg.norm(rows) / np.linalg.norm(expected) > 0.999


@pytest.fixture(scope="module")
def encoder_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder with normalised mean pooling."""
    directory = tmp_path_factory.mktemp("encoder") / "model"
    _save("bert", directory, {"normalize": True})
    return directory


@pytest.fixture(scope="module")
def encoder(encoder_dir: Path) -> Iterator[LLM]:
    """The encoder of ``encoder_dir`` as an LLM."""
    with LLM(encoder_dir, **LIMITS) as llm:
        yield llm


def test_a_text_has_the_same_embedding_alone_and_among_others(encoder: LLM) -> None:
    together = encoder.embed(TEXTS)
    assert [encoder.embed(text) for text in TEXTS] == together
    assert np.linalg.norm(together, axis=1) == pytest.approx(1, abs=1e-6)


def test_calls_of_several_threads_run_together(encoder: LLM) -> None:
    alone = encoder.embed(TEXTS)

    def embed(number: int) -> None:
        rows = encoder.embed(TEXTS[number:], priority=number % 3, timeout=600)
        np.testing.assert_allclose(rows, alone[number:], atol=1e-5)

    before = encoder.get_stats()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(embed, range(16)))
    after = encoder.get_stats()
    num_tokens = sum(sum(map(len, TEXTS[number:])) for number in range(16))
    assert after.num_scheduled_tokens - before.num_scheduled_tokens == num_tokens
    assert (after.num_running, after.num_waiting) == (0, 0)


def test_a_call_that_takes_too_long_ends(encoder: LLM) -> None:
    with pytest.raises(
        LimitError, match=r"timeout: text \d+ was not embedded within 1e-06 s: wait longer, or send less"
    ):
        encoder.embed(TEXTS, timeout=1e-6)
    with pytest.raises(ArgumentError, match="priority is 101"):
        encoder.embed(TEXTS, priority=101)


def test_prompts_are_texts_and_token_ids(encoder: LLM) -> None:
    text = "the quick brown fox"
    assert encoder.tokenizer is not None
    ids = encoder.tokenizer.encode(text)
    assert encoder.embed(text) == encoder.embed(ids) == encoder.embed([text])[0] == encoder.embed({"prompt": text})


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([[3] * 65], LimitError, "the text has 65 tokens, which exceeds max_input_len 64"),
        ([[3], [3] * 70], LimitError, "text 1 has 70 tokens, which exceeds max_input_len 64"),
        ([], ArgumentError, "there are no prompts"),
        ([[]], ArgumentError, "prompt 0 is empty"),
        ([[VOCAB_SIZE]], ArgumentError, f"the token id {VOCAB_SIZE}: expected 0 to {VOCAB_SIZE - 1}"),
    ],
)
def test_bad_prompts_are_refused(encoder: LLM, prompts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        encoder.embed(prompts)


def test_tokens_of_a_step_bound_a_text(encoder: LLM) -> None:
    with (
        LLM(encoder.engine_dir, max_num_tokens=10) as tight,
        pytest.raises(LimitError, match="the text has 11 tokens, which exceeds max_num_tokens 10"),
    ):
        tight.embed([3] * 11)


def test_an_encoder_generates_nothing(encoder: LLM) -> None:
    for use in (lambda: encoder.generate("text"), lambda: encoder.generate_async("text")):
        with pytest.raises(ArgumentError, match="is the engine of an encoder, which embeds texts"):
            use()


def test_what_generates_refuses_an_encoder(encoder: LLM) -> None:
    with pytest.raises(ArgumentError, match="is the engine of an encoder, which embeds texts"):
        ModelRunner.from_dir(encoder.engine_dir)
    with pytest.raises(ArgumentError, match="is the engine of an encoder, which embeds texts"):
        SequenceRunner(encoder.engine_dir)


def test_executors_without_steps_for_encoders_refuse_them(encoder: LLM) -> None:
    executor = PacedExecutor(Engine(str(encoder.engine_dir / ENGINE_FILE)), num_blocks=1, step_seconds=0)
    with pytest.raises(ArgumentError, match="expected an engine that makes logits, found an encoder: load it on one"):
        EncoderLoop(executor, max_batch_size=1, max_input_len=8, max_num_tokens=8)


def test_a_decoder_embeds_nothing(llm: LLM) -> None:
    with pytest.raises(ArgumentError, match="this engine was built from a decoder, which generates text"):
        llm.embed("text")


def test_an_encoder_classifies_nothing(encoder: LLM) -> None:
    message = r"built from a text encoder, which embeds texts \(LLM.embed\), and LLM.classify is of another kind"
    with pytest.raises(ArgumentError, match=message):
        encoder.classify("text")


def test_options_of_generation_are_refused(encoder: LLM) -> None:
    with pytest.raises(ArgumentError, match=r"kv_cache_config: this engine is an encoder's, which generates nothing"):
        LLM(encoder.engine_dir, kv_cache_config={"max_tokens": 64})


def test_nothing_is_embedded_after_shutdown(encoder_dir: Path) -> None:
    with LLM(encoder_dir, **LIMITS) as llm:
        pass
    with pytest.raises(LimitError, match="this model was shut down"):
        llm.embed([3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "sm_120", "backend": "tensorrt"},
            "backend is tensorrt: encoders are for the backend native; leave it out",
        ),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype is float16: encoders have no KV cache"),
        ({"max_beam_width": 2}, "max_beam_width is 2: encoders generate nothing"),
        ({"max_draft_len": 2}, "max_draft_len is 2: encoders generate nothing"),
        ({"gather_context_logits": True}, "gather_context_logits is given: encoders make no logits"),
        ({"max_lora_rank": 8}, "max_lora_rank is 8: encoders take no adapters yet"),
        ({"tp_size": 2}, "tp_size is 2: encoders run on one device only"),
        ({"pp_size": 2}, "pp_size is 2: encoders run on one device only"),
        ({"max_num_tokens": 60}, "max_num_tokens is 60, below max_input_len 64"),
    ],
)
def test_builds_of_what_encoders_lack_are_refused(
    encoder_dir: Path, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    convert_checkpoint(str(encoder_dir), tmp_path / "checkpoint")
    with pytest.raises(BuildError, match=message):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", **{**LIMITS, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qformat": "int8_sq"}, "calibration is needed for int8_sq: encoders have no logits .* choose a qformat"),
        ({"qformat": "int8_wo", "kv_cache_dtype": "int8"}, "kv_cache_dtype is int8: encoders have no KV cache"),
        ({"qformat": "int8_wo", "max_accuracy_loss": 1}, "an encoder predicts none; leave max_accuracy_loss out"),
        ({"autoq_format": "int8_wo,fp8_wo", "auto_quantize_bits": 12}, "an encoder predicts none; .* autoq_format"),
    ],
)
def test_quantization_that_decoders_alone_have_is_refused(
    encoder_dir: Path, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    convert_checkpoint(str(encoder_dir), tmp_path / "checkpoint")
    command = "build" if "max_accuracy_loss" in options else "quantize"
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    asked = [command, "--checkpoint_dir", str(tmp_path / "checkpoint"), "--output_dir", str(tmp_path / "made"), *flags]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 1
    assert re.search(message, result.output)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_checkpoint_shows_what_a_build_fuses(encoder_dir: Path, encoder: LLM, tmp_path: Path) -> None:
    convert_checkpoint(str(encoder_dir), tmp_path / "checkpoint", dtype="float32")
    found = inspect_path(tmp_path / "checkpoint")
    assert found.fusions == inspect_path(encoder.engine_dir).fusions
    assert "pooling" in {item.pass_name for item in found.fusions}


def test_triton_takes_no_encoder(encoder: LLM, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"is the engine of an encoder, which embeds texts .* but generates none"):
        write_repository(encoder.engine_dir, tmp_path / "repository")
    assert not list(tmp_path.iterdir())


def test_quantized_weights(encoder_dir: Path, tmp_path: Path, encoder: LLM) -> None:
    convert_checkpoint(str(encoder_dir), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", qformat="int8_wo", **LIMITS)
    with LLM(tmp_path / "engine") as llm:
        similarity = (np.array(llm.embed(TEXTS)) * np.array(encoder.embed(TEXTS))).sum(1)
    assert 0.999 < similarity.min() < 1


@pytest.mark.parametrize("family", ["roberta", "mpnet", "modernbert"])
def test_models_with_an_lm_head(family: str, tmp_path: Path) -> None:
    """Published checkpoints are masked LMs, whose tensor names have a prefix and whose head has its own tensors."""
    model = AutoModelForMaskedLM.from_config(tiny_config(family), attn_implementation="eager").eval()
    model.save_pretrained(tmp_path / "model")
    with LLM(tmp_path / "model", dtype="float32", **LIMITS) as llm:
        rows = np.array(llm.embed(TEXTS), np.float32)
    assert_close(rows, expected_rows(model.base_model, TEXTS), what="embeddings")


@pytest.mark.parametrize("half", [0, 1, 7])
def test_windows_of_modernbert(half: int, tmp_path: Path) -> None:
    """Texts are longer than several windows, and old configs give the kinds of layers as numbers."""
    biases = {"attention_bias": True, "mlp_bias": True}
    model = _save("modernbert", tmp_path / "model", {}, local_attention=2 * half + 2, **biases)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["layer_types"]
    ropes = config.pop("rope_parameters")
    names = {"global_rope_theta": "full_attention", "local_rope_theta": "sliding_attention"}
    config |= {name: ropes[kind]["rope_theta"] for name, kind in names.items()} | {"global_attn_every_n_layers": 3}
    path.write_text(json.dumps(config))
    with LLM(tmp_path / "model", dtype="float32", **LIMITS) as llm:
        rows = np.array(llm.embed(TEXTS), np.float32)
    assert_close(rows, expected_rows(model, TEXTS), what="embeddings")


def test_distances_of_mpnet() -> None:
    """Buckets follow from rounded logarithms, so those of all distances are compared."""
    distances = torch.arange(-600, 601)
    expected = MPNetEncoder.relative_position_bucket(distances).tolist()
    assert [mpnet.bucket(int(distance)) for distance in distances] == expected
    assert len({mpnet.bucket(distance) for distance in (128, 129, 600)}) == 1  # the table ends at 128


def test_heads_that_draft_are_for_decoders(encoder_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="expected --draft_model_dir and --target_model_dir with decoders"):
        convert_checkpoint(str(encoder_dir), tmp_path / "checkpoint", draft_model_dir=str(encoder_dir))


def test_minilm() -> None:
    """all-MiniLM-L6-v2: real weights, its own tokenizer, and texts of very different lengths."""
    directory = CACHE / FILES["all-minilm-l6-v2"]
    if not directory.is_dir():
        pytest.skip(f"{directory.name} is not there: bash scripts/fetch_model.sh all-minilm-l6-v2")
    texts = ["A cat sits on the mat.", "Un chat est assis.", "naïve café", "x", "The weather is lovely today. " * 40]
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    expected = expected_rows(model, [tokenizer(text).input_ids for text in texts], normalize=True)
    with LLM(directory, dtype="float32") as llm:
        rows = np.array(llm.embed(texts), np.float32)
        with pytest.raises(LimitError, match="302 tokens, which exceeds max_input_len 256"):
            llm.embed("The weather is lovely today. " * 50)  # the model has 512 positions
    assert_close(rows, expected, what="embeddings")


def test_positions_that_old_files_hold_are_dropped(encoder_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder_dir, tmp_path / "old")
    tensors = load_file(tmp_path / "old" / "model.safetensors")
    tensors["embeddings.position_ids"] = torch.arange(128)[None]
    save_file(tensors, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    for model in (encoder_dir, tmp_path / "old"):
        convert_checkpoint(str(model), tmp_path / f"{model.name}-checkpoint")
    old, new = (tmp_path / f"{name}-checkpoint" / "weights.safetensors" for name in ("old", encoder_dir.name))
    assert old.read_bytes() == new.read_bytes()


def test_the_default_prompt_comes_before_texts(tmp_path: Path) -> None:
    """sentence-transformers puts the prompt before texts, too. Token ids, in contrast, are taken as the whole text."""
    model = _save("bert", tmp_path / "model", {"normalize": True})
    said = {"prompts": {"query": "the other dogs: ", "document": ""}, "default_prompt_name": "query"}
    (tmp_path / "model" / "config_sentence_transformers.json").write_text(json.dumps(said))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = ["quick brown fox", ""]
    with LLM(tmp_path / "model", **LIMITS) as llm:
        rows = np.array(llm.embed(texts), np.float32)
        bare = llm.embed([tokenizer(texts[0]).input_ids])
    ids = [tokenizer(f"the other dogs: {text}").input_ids for text in texts]
    assert_close(rows, expected_rows(model, ids, normalize=True), what="embeddings")
    assert np.abs(rows[0] - np.array(bare[0], np.float32)).max() > 1e-3


def _check_inspection(engine: Path, embedding_size: int) -> None:
    """What `inspect` tells of an encoder in the directory of the decoder's engine is what it tells of it alone."""
    alone = inspect_path(engine / "text_encoder")
    found = json.loads(CliRunner().invoke(cli, ["inspect", str(engine), "--json"]).output)["encoder"]
    assert found == {
        "kind": "text_encoder",
        "architecture": "BertModel",
        "embedding_size": embedding_size,
        "weights": alone.memory["weights"],
        "limits": alone.limits,
    }
    (line,) = re.findall("beside it: .*", CliRunner().invoke(cli, ["inspect", str(engine)]).output)
    assert f"text_encoder BertModel, embedding_size {embedding_size}, weights" in line
    assert f"({alone.memory['weights']:,} B)" in line
    assert all(f"{name} {limit}" in line for name, limit in LIMITS.items())


def test_an_encoder_lives_beside_a_decoder(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "decoder")
    _save("bert", tmp_path / "encoder", POOLINGS["mean-normalized"])
    text, params = "the quick brown fox", SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with LLM(tmp_path / "decoder", **LIMITS) as llm:
        llm.save(tmp_path / "engine")
        tokens = llm.generate(text, params).outputs[0].token_ids
        assert not llm.embeds
    with LLM(tmp_path / "encoder", **LIMITS) as llm:
        assert inspect_path(tmp_path / "engine").encoder is None
        llm.save(tmp_path / "engine" / "text_encoder")
        row = llm.embed(text)
    _check_inspection(tmp_path / "engine", len(row))
    with LLM(tmp_path / "engine") as llm:
        assert llm.generates
        assert llm.embed([text, text])[1] == row
        assert llm.generate(text, params).outputs[0].token_ids == tokens
        llm.save(tmp_path / "copy")
    with LLM(tmp_path / "copy") as llm:
        assert llm.embed(text) == row
    with pytest.raises(LimitError, match="was shut down"):
        llm.embed(text)
    shutil.rmtree(tmp_path / "copy" / "text_encoder")
    shutil.copytree(tmp_path / "engine", tmp_path / "copy" / "text_encoder")
    for read in (LLM, inspect_path):
        with pytest.raises(EngineError, match="text_encoder is the engine of a decoder"):
            read(tmp_path / "copy")
