"""Lists options of llama.cpp's server. Names that begin with a single dash are listed with it."""

from collections.abc import Mapping

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import Foreign, merge, same

_BOTH = "it is another name of an option here"
_MODEL = "give the model's file, directory or hub id without an option"
_CONTEXT = "use --max_seq_len, which bounds one sequence (llama.cpp's option bounds all slots together)"
_CACHE_TYPE = "use --kv_cache_dtype int8 or fp8, with --key_cache_dtype if only values are to have 8 bits"
_PLACES = "all layers are on the devices of --target and --tensor_parallel_size; leave it out"
_THREADS = "--num_threads sets the number of threads, and the system places them; leave it out"
_ROPE = "the model's own RoPE is used; change its file, and leave it out"
_FILES = "weights are mapped into memory"
_OFFLINE = "set the variable HF_HUB_OFFLINE=1"
_LOG = "use --log_format json for objects instead of text, and --no_access_log for none"
_REQUESTS = "requests set it, and the model's generation_config.json sets its default"
_LORA = "an adapter of PEFT's format is given with --lora_modules NAME=DIR"
_DRAFTS = "use --speculative_config"
_TEMPLATES = "the model's own template is used; convert the model again with another tokenizer_config.json"
_BATCHED = "requests are always batched in flight"
_SHARED = "prefixes are shared by all requests; --no_kv_cache_block_reuse switches that off"
_NO_SHIFT = "a request that does not fit is an error; leave it out"
_PAGE = "the page for chats is at /"
_ALWAYS = "the server always does this"
_STEPS = "use --max_num_tokens, the tokens of one step"
_ON = ("true", "on", "auto", "1", "enabled")
_OFF = ("false", "off", "0", "disabled")

_LOADING = merge(
    [
        same("-m -mu model_url -hf -hfr hf_repo -hff hf_file -dr docker_repo", _MODEL),
        same("-hft", "set the variable HF_TOKEN: tokens on a command line are seen by all users of a machine"),
        same("-c ctx_size kv_unified_per_slot", _CONTEXT, (0,)),
        same("-np parallel", _BOTH, becomes="max_batch_size"),
        same("-t threads", _BOTH, becomes="num_threads"),
        same("-a alias", _BOTH, becomes="served_model_name"),
        same("cors_origins", _BOTH, becomes="allowed_origins"),
        same("-tb threads_batch threads_http -C cpu_mask -Cr cpu_range cpu_strict", _THREADS, harmless=True),
        same("prio poll -Cb cpu_mask_batch -Crb cpu_range_batch numa", _THREADS, harmless=True),
        same("-b batch_size -ub ubatch_size", _STEPS),
        same("-ngl gpu_layers n_gpu_layers -sm split_mode -mg main_gpu", _PLACES, ("all", "auto", 99, 999, "none", 0)),
        same("-ts tensor_split -ot override_tensor -cmoe cpu_moe -ncmoe n_cpu_moe -ncffn n_cpu_ffn", _PLACES),
        same("-dev rpc", "use --target cpu, or --target sm_90"),
        same("-kvo kv_offload op_offload repack", _ALWAYS, _ON, harmless=True),
        same("-nkvo no_kv_offload no_op_offload no_host moe_cache_mib", _PLACES, _OFF),
        same("-nr no_repack swa_full -fit fit -fitt fit_target -fitc fit_ctx", remedies.KERNELS, harmless=True),
        same("-fa flash_attn -bs backend_sampling", remedies.KERNELS, harmless=True),
        same("-ctk cache_type_k -ctv cache_type_v", _CACHE_TYPE, ("f16",)),
        same("-lm load_mode mlock mmap no_mmap -lzm lazy_mode check_tensors -dt defrag_thold", _FILES, harmless=True),
        same("rope_scale rope_freq_base rope_freq_scale yarn_orig_ctx yarn_ext_factor yarn_attn_factor", _ROPE, (0,)),
        same("yarn_beta_slow yarn_beta_fast override_kv", _ROPE),
        same("lora lora_scaled lora_init_without_apply", _LORA),
        same("control_vector control_vector_scaled control_vector_layer_range", "give an adapter; leave it out"),
        same("offline", _OFFLINE),
        same("list_devices", "`nvidia-smi -L` lists GPUs"),
    ]
)
_SAMPLING = merge(
    [
        same("-n predict n_predict", "requests have max_tokens; leave it out", (-1,)),
        same("-s ignore_eos temp temperature top_k top_p min_p top_nsigma top_n_sigma", _REQUESTS, ("-1",)),
        same("repeat_penalty presence_penalty frequency_penalty repeat_last_n -l logit_bias", _REQUESTS),
        same("grammar grammar_file -j json_schema -jf json_schema_file", _REQUESTS),
        same("xtc_probability dynatemp_range mirostat dry_multiplier", "use temperature, top_p and min_p", (0,)),
        same("samplers sampler_seq sampling_seq", "filters of tokens have one order; leave it out"),
        same("typical typical_p xtc_threshold dry_base dry_allowed_length dry_penalty_last_n", "use min_p", (1,)),
        same("-r reverse_prompt", "requests have stop; leave it out"),
        same("keep context_shift", _NO_SHIFT, _OFF),
        same("no_context_shift no_escape -e escape", _NO_SHIFT, harmless=True),
        same("-sp special", "requests have skip_special_tokens; leave it out", _OFF),
    ]
)
_ANSWERING = merge(
    [
        same("-cb cont_batching", _BATCHED, _ON, harmless=True),
        same("-nocb no_cont_batching", _BATCHED, _OFF),
        same("-kvu kv_unified cache_prompt cache_idle_slots -cram cache_ram", _SHARED, harmless=True),
        same("-ctxcp ctx_checkpoints swa_checkpoints -cms checkpoint_min_step", _SHARED, harmless=True),
        same("no_cache_prompt", "use --no_kv_cache_block_reuse"),
        same("cache_reuse", "blocks are shared from the beginning of prompts on; leave it out", (0,)),
        same("-sps slot_prompt_similarity no_slots slots", _SHARED, harmless=True),
        same("slot_save_path props", "the KV cache is not stored; leave it out"),
        same("warmup no_warmup perf no_perf", "nothing here needs it", harmless=True),
        same("metrics ui webui jinja", _ALWAYS, harmless=True),
        same("no_ui no_webui", _PAGE),
        same("path", _PAGE),
        same("api_prefix", "let the proxy in front of the server remove the path"),
        same("ssl_key_file ssl_cert_file", "the server speaks HTTP alone: let a proxy in front of it do TLS"),
        same("-to timeout", "requests have a field timeout; leave it out"),
        same("no_jinja chat_template_file skip_chat_parsing", _TEMPLATES),
        same("chat_template_kwargs", "requests have chat_template_kwargs; leave it out", ("{}",)),
        same("reasoning_format", "use --reasoning_parser", ("auto",)),
        same("-rea reasoning reasoning_budget", "requests have chat_template_kwargs; leave it out", (-1, "auto")),
        same("-mm mmproj mmproj_url no_mmproj mmproj_auto image_min_tokens image_max_tokens", remedies.TEXT_ONLY),
        same("embedding embeddings pooling", "an encoder's engine embeds, a decoder's generates", ("true",)),
        same("embd_normalize", "embeddings are of length 1 where the model says so; leave it out", (2,)),
        same("rerank reranking spm_infill", "there is no such route; leave it out", _OFF),
        same("models_dir models_preset models_max", "give several models as NAME=MODEL"),
        same("tools mcp_servers_config -ag agent", "the server runs no tools of its own; leave it out"),
        same(
            "-v verbose log_verbose -lv verbosity log_verbosity log_colors log_prefix log_timestamps",
            _LOG,
            harmless=True,
        ),
        same("log_disable", "use --no_access_log"),
        same("log_file", "the access log is lines on stderr: redirect them"),
        same("-md model_draft -hfd hf_repo_draft spec_type draft draft_n draft_max draft_min draft_n_min", _DRAFTS),
        same("draft_p_min draft_p_split -ngld gpu_layers_draft n_gpu_layers_draft -lcs -lcd", _DRAFTS),
        same("spec_draft_n_max spec_draft_n_min spec_draft_model spec_default", _DRAFTS),
    ]
)

LLAMA_SERVER: Mapping[str, Foreign] = merge([_LOADING, _SAMPLING, _ANSWERING])
