"""The arguments that other engines document are accepted, or refused with what to do instead.

The lists follow these sources, of main branches in 2025 and 2026 (at the commit, where one is named):

- TensorRT-LLM: BaseLlmArgs, TrtLlmArgs and TorchLlmArgs of ``tensorrt_llm/llmapi/llm_args.py``, BuildConfig of
  ``tensorrt_llm/builder.py``, and ``tensorrt_llm/sampling_params.py`` at 000a01de66f0
- vLLM: ``vllm/entrypoints/llm.py`` at 0012cf691b7e, ``vllm/sampling_params.py`` at 00388f6573cc,
  ``vllm/entrypoints/openai/cli_args.py`` at 005223338608, and EngineArgs of ``vllm/engine/arg_utils.py``, with names of
  releases since 0.8.5 (https://docs.vllm.ai/en/v0.8.5/serving/engine_args.html)
- llama.cpp: ``tools/server/README.md`` at 00dc8057ab28, with names that its older versions had
"""

import inspect
import warnings
from dataclasses import fields

import pytest

from trtllm_lite import LLM, BuildConfig, KvCacheConfig, SamplingParams
from trtllm_lite.cli import cli
from trtllm_lite.cli.foreign_options import options_by_name, spelled
from trtllm_lite.foreign_names.table import CALLS

LLM_OF_TENSORRT_LLM = """
model tokenizer tokenizer_mode custom_tokenizer skip_tokenizer_init trust_remote_code tensor_parallel_size dtype
revision tokenizer_revision model_kwargs pipeline_parallel_size context_parallel_size gpus_per_node
moe_cluster_parallel_size moe_tensor_parallel_size moe_expert_parallel_size enable_attention_dp
enable_lm_head_tp_in_adp pp_partition cp_config load_format enable_lora lora_config kv_cache_config
enable_chunked_prefill guided_decoding_backend batched_logits_processor iter_stats_max_iterations
request_stats_max_iterations peft_cache_config scheduler_config cache_transceiver_config sparse_attention_config
speculative_config max_batch_size max_input_len max_seq_len max_beam_width max_num_tokens gather_generation_logits
num_postprocess_workers postprocess_tokenizer_dir reasoning_parser decoding_config mpi_session
otlp_traces_endpoint backend return_perf_metrics perf_metrics_max_requests orchestrator_type env_overrides
enable_tqdm workspace enable_build_cache extended_runtime_perf_knob_config calib_config quant_config build_config
fast_build embedding_parallel_mode batching_type normalize_log_probs enable_prompt_adapter
max_prompt_adapter_token garbage_collection_gen0_threshold cuda_graph_config attention_dp_config
disable_overlap_scheduler moe_config nvfp4_gemm_config attn_backend sampler_type sampler_force_async_worker
enable_iter_perf_stats enable_iter_req_stats print_iter_log batch_wait_timeout_ms batch_wait_timeout_iters
batch_wait_max_tokens_ratio torch_compile_config enable_autotuner enable_layerwise_nvtx_marker enable_min_latency
stream_interval force_dynamic_quantization allreduce_strategy checkpoint_loader checkpoint_format
kv_connector_config mm_encoder_only ray_worker_extension_cls enable_sleep layer_wise_benchmarks_config
"""
SAMPLING_PARAMS_OF_TENSORRT_LLM = """
end_id pad_id max_tokens bad bad_token_ids stop stop_token_ids include_stop_str_in_output embedding_bias
logits_processor apply_batched_logits_processor n best_of use_beam_search top_k top_p top_p_min top_p_reset_ids
top_p_decay seed temperature min_tokens beam_search_diversity_rate repetition_penalty presence_penalty
frequency_penalty length_penalty early_stopping no_repeat_ngram_size min_p beam_width_array logprobs
prompt_logprobs return_context_logits return_generation_logits exclude_input_from_output return_encoder_output
return_perf_metrics additional_model_outputs lookahead_config guided_decoding ignore_eos detokenize
add_special_tokens truncate_prompt_tokens skip_special_tokens spaces_between_special_tokens prompt_ignore_length
logprobs_mode
"""
BUILD_CONFIG = """
max_input_len max_seq_len opt_batch_size max_batch_size max_beam_width max_num_tokens opt_num_tokens
max_prompt_embedding_table_size kv_cache_type gather_context_logits gather_generation_logits strongly_typed
force_num_profiles profiling_verbosity enable_debug_output max_draft_len speculative_decoding_mode use_refit
input_timing_cache output_timing_cache lora_config weight_sparsity weight_streaming plugin_config use_strip_plan
max_encoder_input_len dry_run visualize_network monitor_memory use_mrope auto_parallel_config
"""
KV_CACHE_CONFIG = """
enable_block_reuse max_tokens max_attention_window sink_token_length free_gpu_memory_fraction host_cache_size
onboard_blocks cross_kv_cache_fraction secondary_offload_min_priority event_buffer_max_size
attention_dp_events_gather_period_ms enable_partial_reuse copy_on_partial_reuse use_uvm max_gpu_total_bytes dtype
mamba_ssm_cache_dtype tokens_per_block use_kv_cache_manager_v2 max_util_for_resume
"""
LLM_OF_VLLM = """
model runner convert task tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code allowed_local_media_path
allowed_media_domains tensor_parallel_size dtype quantization revision tokenizer_revision chat_template seed
gpu_memory_utilization swap_space cpu_offload_gb enforce_eager enable_return_routed_experts
disable_custom_all_reduce hf_token hf_overrides mm_processor_kwargs pooler_config override_pooler_config
structured_outputs_config kv_cache_memory_bytes compilation_config logits_processors max_seq_len_to_capture
disable_async_output_proc served_model_name code_revision hf_config_path config_format load_format download_dir
safetensors_load_strategy max_model_len distributed_executor_backend pipeline_parallel_size master_addr
master_port nnodes node_rank prefill_context_parallel_size decode_context_parallel_size data_parallel_size
data_parallel_rank enable_expert_parallel all2all_backend enable_dbo eplb_config enable_eplb
max_parallel_loading_workers block_size enable_prefix_caching prefix_caching_hash_algo disable_sliding_window
disable_cascade_attn max_num_batched_tokens max_num_partial_prefills max_long_partial_prefills
long_prefill_token_threshold max_num_seqs max_logprobs logprobs_mode disable_log_stats limit_mm_per_prompt
enable_mm_embeds interleave_mm_strings media_io_kwargs mm_processor_cache_gb enable_lora max_loras max_lora_rank
fully_sharded_loras max_cpu_loras lora_dtype num_gpu_blocks_override model_loader_extra_config ignore_patterns
enable_chunked_prefill reasoning_parser speculative_config otlp_traces_endpoint collect_detailed_traces
scheduling_policy scheduler_cls attention_config kernel_config worker_cls worker_extension_cls profiler_config
kv_transfer_config kv_events_config generation_config enable_sleep_mode override_generation_config model_impl
attention_backend calculate_kv_scales additional_config use_tqdm_on_load async_scheduling stream_interval
kv_offloading_size kv_cache_dtype rope_scaling rope_theta guided_decoding_backend device
"""
SAMPLING_PARAMS_OF_VLLM = """
n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids
ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start
logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
include_stop_str_in_output output_kind stream_interval skip_clone structured_outputs logit_bias allowed_token_ids
extra_args bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection
routed_experts_prompt_start trace_decode_token_ids best_of truncate_prompt_tokens guided_decoding
logits_processors
"""
SERVE_OF_VLLM = """
lora_modules chat_template chat_template_content_format trust_request_chat_template default_chat_template_kwargs
response_role return_tokens_as_token_ids enable_auto_tool_choice exclude_tools_when_tool_choice_none
tool_call_parser tool_parser_plugin tool_server log_config_file max_log_len enable_prompt_tokens_details
enable_per_request_metrics enable_server_load_tracking enable_force_include_usage enable_tokenizer_info_endpoint
enable_log_outputs enable_log_deltas log_error_stack tokens_only host port uds uvicorn_log_level
disable_uvicorn_access_log disable_access_log_for_endpoints allow_credentials allowed_origins allowed_methods
allowed_headers api_key ssl_keyfile ssl_certfile ssl_ca_certs enable_ssl_refresh ssl_cert_reqs ssl_ciphers
root_path middleware enable_request_id_headers disable_fastapi_docs h11_max_incomplete_event_size
h11_max_header_count enable_offline_docs disable_frontend_multiprocessing enable_log_requests api_server_count
headless config shutdown_timeout
"""
SERVE_OF_LLAMA_CPP = """
-t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -c --ctx-size -n
--predict --n-predict -b --batch-size -ub --ubatch-size --keep --swa-full -fa --flash-attn --perf --no-perf -e
--escape --no-escape --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx
--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -kvo --kv-offload -nkvo --no-kv-offload
--repack -nr --no-repack --no-host -ctk --cache-type-k -ctv --cache-type-v -dt --defrag-thold --rpc -lm
--load-mode --mlock --mmap --no-mmap --numa -dev --device --list-devices -ot --override-tensor -cmoe --cpu-moe
-ncmoe --n-cpu-moe -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit
--check-tensors --override-kv --op-offload --no-op-offload --lora --lora-scaled --control-vector -m --model -mu
--model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hft --hf-token --log-disable --log-file
--log-colors -v --verbose --log-verbose --offline -lv --verbosity --log-verbosity --log-prefix --log-timestamps
--samplers -s --seed --ignore-eos --temp --temperature --top-k --top-p --min-p --top-nsigma --xtc-probability
--xtc-threshold --typical --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier
--mirostat -l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file -kvu --kv-unified
-cram --cache-ram --context-shift --no-context-shift -r --reverse-prompt -sp --special --warmup --no-warmup
--pooling -np --parallel -cb --cont-batching -nocb --no-cont-batching -mm --mmproj --no-mmproj -a --alias --host
--port --path --api-prefix --no-webui --embedding --embeddings --rerank --reranking --api-key --api-key-file
--ssl-key-file --ssl-cert-file --chat-template-kwargs -to --timeout --threads-http --cache-prompt
--no-cache-prompt --cache-reuse --metrics --props --slots --no-slots --slot-save-path --jinja --no-jinja
--reasoning-format --reasoning-budget --chat-template --chat-template-file -sps --slot-prompt-similarity -md
--model-draft --draft --draft-max --draft-min --draft-p-min -ngld --spec-type --cors-origins
"""

ARGUMENTS = {
    "LLM": (LLM.__init__, [LLM_OF_TENSORRT_LLM, LLM_OF_VLLM]),
    "SamplingParams": (SamplingParams, [SAMPLING_PARAMS_OF_TENSORRT_LLM, SAMPLING_PARAMS_OF_VLLM]),
    "KvCacheConfig": (KvCacheConfig, [KV_CACHE_CONFIG]),
    "BuildConfig": (BuildConfig, [BUILD_CONFIG]),
}
# Defaults of TensorRT-LLM and vLLM, for classes to which programs often pass defaults.
DEFAULTS = {
    SamplingParams: {
        **{"pad_id": 2, "n": 1, "logprobs_mode": "raw", "exclude_input_from_output": True, "add_special_tokens": True},
        **{"spaces_between_special_tokens": True, "prompt_ignore_length": 0, "top_p_decay": 1.0, "stream_interval": 1},
        **{"routed_experts_prompt_start": 0, "flat_logprobs": False, "output_kind": 0, "skip_clone": False},
    },
    KvCacheConfig: {
        **{"enable_block_reuse": True, "onboard_blocks": True, "enable_partial_reuse": True, "use_uvm": False},
        **{"event_buffer_max_size": 0, "mamba_ssm_cache_dtype": "auto", "dtype": "auto"},
        **{"copy_on_partial_reuse": True, "attention_dp_events_gather_period_ms": 5, "max_util_for_resume": 0.95},
    },
    BuildConfig: {
        **{"max_beam_width": 1, "strongly_typed": True, "max_prompt_embedding_table_size": 0, "max_draft_len": 0},
        **{"profiling_verbosity": "layer_names_only", "output_timing_cache": "model.cache", "weight_sparsity": False},
        **{"max_encoder_input_len": 1024, "opt_batch_size": 8, "use_refit": False, "dry_run": False},
    },
}


@pytest.mark.parametrize("place", ARGUMENTS)
def test_every_argument_is_known(place):
    own, lists = ARGUMENTS[place]
    known = {**inspect.signature(own).parameters, **CALLS[place]}
    for names in lists:
        assert not [name for name in names.split() if name not in known]


def test_every_option_of_servers_is_known():
    known = dict(options_by_name(cli.commands["serve"]))
    engine = [name for name in LLM_OF_VLLM.split() if name != "tokenizer"]
    given = [*map(spelled, [*engine, *SERVE_OF_VLLM.split()]), *SERVE_OF_LLAMA_CPP.split()]
    spellings = [name if name[1] != "-" else "--" + name[2:].replace("-", "_") for name in given]
    assert not [name for name in spellings if name not in known]


@pytest.mark.parametrize("made", DEFAULTS)
def test_defaults_of_other_engines_change_nothing(made):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert made(**DEFAULTS[made]) == made()


def test_fields_of_configurations_are_arguments_of_llm():
    parameters = inspect.signature(LLM.__init__).parameters
    assert {field.name for field in fields(BuildConfig)} <= parameters.keys()
