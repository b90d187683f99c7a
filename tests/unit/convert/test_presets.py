"""The shapes in configs/models are the published ones: each converts, and has the published number of parameters."""

import json
import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from trtllm_lite.convert.family import all_families, find_family
from trtllm_lite.convert.mapping import read_model
from trtllm_lite.convert.quantized import SETTINGS
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.text_model import as_text_model
from trtllm_lite.network.model import network_of

PRESETS = Path(__file__).parents[3] / "configs" / "models"
PARAMETERS = {
    "qwen2.5-vl-7b": 7_615_616_512,  # those of Qwen2.5 7B
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b-v0.1": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "gpt2": 124_439_808,
    "phi-3-mini-4k": 3_821_079_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-270m": 268_098_176,
    "gemma-3-4b": 3_880_263_168,  # 4,300,079,472 with the vision model and its projector
    "ministral-3-8b": 8_489_553_920,  # without the vision model
    "mistral-small-3.1-24b": 23_572_403_200,  # equal to Mistral Small 3, which has no vision model
    "command-r-v01": 34_980_831_232,
    "starcoder2-3b": 3_030_371_328,
    "smollm3-3b": 3_075_098_624,
    "internlm3-8b": 8_804_241_408,
    "internlm2-7b": 7_737_708_544,
    "ministral-8b": 8_019_808_256,
    "granite-3.1-2b": 2_533_531_648,
    "falcon3-7b": 7_455_550_464,
    "pythia-1.4b": 1_414_647_808,
    "glm-4-9b-chat": 9_399_951_360,
    "glm-4-9b-0414": 9_400_279_040,
    "olmo-2-1b": 1_484_916_736,
    "olmo-3-7b": 7_298_011_136,
    "exaone-3.5-2.4b": 2_405_327_360,
    "exaone-4.0-1.2b": 1_279_391_488,
    "gemma-2b": 2_506_172_416,
    "command-r7b-12-2024": 8_028_033_024,
    "seed-oss-36b": 36_151_104_512,
    "apertus-8b": 8_055_402_496,  # factors of activations for each feature
    "hunyuan-0.5b": 463_512_576,
    # With a factor of each layer for every feature, and norms of values, all 1, which layers of a kind share. In layers
    # of the larger models without a window, values have a copy of the keys' matrix.
    "gemma-4-e2b": 4_628_569_344 + 35 * 1536 + 256 + 512,
    "gemma-4-26b-a4b": 25_233_141_760 + 30 * 2816 + 256 + 512 + 5 * 2 * 512 * 2816,
    "gemma-4-31b": 30_697_345_280 + 60 * 5376 + 256 + 512 + 10 * 4 * 512 * 5376,
    "gemma-4-12b": 11_907_350_272 + 48 * 3840 + 256 + 512 + 8 * 512 * 3840,
    # With factors of mixes for streams that are not there, without the norms of routers, which are in their matrices,
    # with norms of values, all 1, and with inputs of layers for all tokens.
    "gemma-3n-e2b": 4_435_182_688 + 30 * (36 + 84 - 2048) + 256 + 256 * 30 * 256,
    "gemma-3n-e4b": 6_835_235_568 + 35 * (36 + 84 - 2048) + 256 + 256 * 35 * 256,
    "vaultgemma-1b": 1_038_741_120,
    "jais-2-8b": 8_090_401_280,
    "cwm": 32_581_097_472,
    "youtu-llm-2b": 1_961_560_064,
    "mellum2-12b-a2.5b": 12_149_923_072,
    "north-mini-code": 30_484_303_872,
    "hy3": 295_033_528_320 + 79 * 192,  # with corrections of scores, and without the draft layer
    "trinity-nano": 6_120_003_328,
    "afm-4.5b": 4_619_184_640,
    "minitron-4b": 4_190_509_056,
    "stablelm-2-12b": 12_143_185_920,
    "stablelm-2-1.6b": 1_644_515_328,
    "helium-1-2b": 2_172_643_840,
    "phi-2": 2_779_683_840,
    "falcon-7b": 6_921_720_704,
    "falcon-11b": 11_102_822_400,
    "ernie-4.5-0.3b": 360_748_032,
    "phi-4-mini": 3_836_021_760,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "olmoe-1b-7b-0924": 6_919_161_856,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-next-80b-a3b": 79_674_391_296,  # without the draft layer
    "qwen3.6-27b": 26_895_998_464,  # without the vision model and the draft layer
    "qwen3.5-0.8b": 752_393_024,  # without the vision model and the draft layer
    "qwen3.5-4b": 4_205_751_296,  # without the vision model and the draft layer
    "qwen3.5-35b-a3b": 34_660_610_688,  # without the vision model and the draft layer
    "kimi-linear-48b-a3b": 49_122_681_728,
    "lfm2-1.2b": 1_170_340_608,
    "lfm2-8b-a1b": 8_339_930_560,
    # With the weights, all 1, of norms of groups, which all layers share: as many as a group has features.
    "bamba-9b": 9_780_243_584,
    "falcon-h1-0.5b": 521_411_104,
    "granite-4.0-h-small": 32_207_346_176,
    "granite-4.0-micro": 3_402_836_480,
    "nemotron-nano-9b-v2": 8_888_228_608,
    "nemotron-3-nano-30b-a3b": 31_577_940_800,  # and with corrections of scores
    "granite-3.0-1b-a400m": 1_334_628_352,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,  # without the draft layer
    "glm-4.5-air": 106_852_251_264,  # without the draft layer
    "glm-4.7-flash": 29_943_393_920,  # without the draft layer
    "dots.llm1": 142_774_381_696,
    "minimax-m2": 228_689_764_864,
    "mimo-v2-flash": 309_675_313_344,  # 308,778,780,864 with values as narrow as they are
    "phi-3.5-moe": 41_873_153_344,  # without the factors of LongRoPE, which are no parameters
    "ernie-4.5-21b-a3b": 21_825_437_888,  # without the draft layer
    "k-exaone-236b-a23b": 236_571_156_352,  # without the draft layer
    "flexolmo-7x7b": 33_270_665_216,
    "hunyuan-a13b": 80_393_183_232,
    "solar-open-100b": 102_651_799_552,
    "llama-4-scout": 107_769_861_248,  # with a norm whose weights are all 1
    "mimo-7b": 7_622_619_136,  # without the draft layer
    "all-minilm-l6-v2": 22_564_992,  # without the pooler, and with one token type
    "bge-base-en-v1.5": 108_890_880,  # without the pooler, and with one token type
    "all-mpnet-base-v2": 108_897_036,  # without the pooler and two positions; biases by distance, not by bucket
    "multi-qa-mpnet-base-dot-v1": 108_897_036,
    "all-distilroberta-v1": 81_526_272,  # without the pooler and two positions
    "roberta-base": 124_053_504,  # without the pooler and two positions
    "bge-m3": 566_703_104,  # without the pooler and two positions
    "xlm-roberta-base": 277_451_520,  # without the pooler and two positions
    "modernbert-base": 149_014_272,  # without head and decoder
    "gte-modernbert-base": 149_014_272,
}


def _source(name: str) -> Source:
    """The config of a preset without weights; for multimodal models, that of the text model."""
    config = json.loads((PRESETS / f"{name}.json").read_text())
    config.pop(SETTINGS, None)  # how weights are stored does not matter here
    return as_text_model(Source(name, config, {}, {}, np.zeros, None, {}))


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name: str) -> None:
    _, _, model = read_model(_source(name))
    network = network_of(model, ir.DataType.BFLOAT16)
    assert sum(math.prod(weight.shape) for weight in network.weights) == PARAMETERS[name]


def test_every_preset_is_listed_and_every_family_has_one() -> None:
    assert {path.stem for path in PRESETS.glob("*.json")} == set(PARAMETERS)
    families = {name for name, family in all_families().items() if not family.drafts}
    assert {find_family(_source(name).config["architectures"]).name for name in PARAMETERS} == families
