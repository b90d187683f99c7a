"""The configuration file with the options of a server."""

import click
import pytest

from trtllm_lite.cli.serve import serve


def options(tmp_path, text, *arguments):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    return serve.make_context("serve", ["engine", "--config", str(file), *arguments]).params


def test_options_are_those_of_the_command_line(tmp_path):
    text = """
max-num-seqs: 3
speculative_config: {method: ngram, num_speculative_tokens: 2}
allowed_origins: [https://a.example, https://b.example]
no_access_log: true
deterministic: false
served_model_name: m
tokenizer: null
enable_chunked_prefill: true
kv_cache_config: {free_gpu_memory_fraction: 0.5, enable_block_reuse: true}
"""
    arguments = ["--max_batch_size", "3", "--speculative_config", '{"method": "ngram", "num_speculative_tokens": 2}']
    arguments += ["--allowed_origins", "https://a.example", "--allowed_origins", "https://b.example"]
    arguments += ["--no_access_log", "--served_model_name", "m", "--kv_cache_free_gpu_memory_fraction", "0.5"]
    assert options(tmp_path, text) == serve.make_context("serve", ["engine", *arguments]).params
    assert options(tmp_path, text, "--max_num_seqs", "2")["max_batch_size"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batchsize: 3", "'max_batchsize', which is no option for such a file: did you mean max_batch_size"),
        ("max_batch_size: 3\nmax_num_seqs: 4", "--max_batch_size by two names"),
        ("max_batch_size: true", "'True' is not a valid integer"),
        ("max_batch_size: 2.5", "'2.5' is not a valid integer"),
        ("no_access_log: 1", "no_access_log is 1: expected true or false"),
        ("ssl_keyfile: key.pem", "--ssl_keyfile key.pem: the server speaks HTTP alone"),
        ("config: other.yaml", "'config', which is no option for such a file"),
        ("kv_cache_config: {event_buffer_max_size: 3}", "'kv_cache_config.event_buffer_max_size'"),
        ("kv_cache_config: {enable_block_reuse: false}", "--no_kv_cache_block_reuse switches that off"),
        ("- port", "holds no mapping of options"),
        ("port: [", "is not YAML"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path, text, message):
    with pytest.raises(click.ClickException) as raised:
        options(tmp_path, text)
    assert message in raised.value.format_message()
