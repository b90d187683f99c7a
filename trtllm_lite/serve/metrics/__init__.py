"""Metrics of the server at /metrics, in Prometheus's format, under the names of vLLM and of TensorRT-LLM.

Nothing is counted for each token in Python: the runtime counts steps, tokens and the gaps between tokens, and each
sequence is counted once, when it has ended. With ``n`` or several prompts a request over HTTP is several sequences.

What differs from vLLM:

- times count from when a sequence was submitted to the event loop, after tokenizing and waiting for an adapter; only
  sequences that have generated something are in histograms of times, and in the counts of prompt tokens
- ``request_success`` counts all ends; ``finished_reason`` may also be ``timeout``
- ``iteration_tokens_total`` has a sum and a count, and no buckets
- ``cache_config_info`` has the labels that are true of this cache
- ``admission_rejections`` has the reasons ``queue_full`` (status 429 before tokenizing) and ``overloaded`` (after it)
- ``spec_decode_*`` count the drafts of grammars, too
- ``tool_call_parser_invocations_total`` counts each choice once, and has ``outcome`` alone beside the model's labels

Of vLLM's names these are left out, because there is nothing that they could say:

- ``external_prefix_cache_*``, ``num_requests_kv_fetch_by_stage``, ``nixl_*``, ``kv_offload_*`` and
  ``simple_kv_offload_*``: there is one cache, which takes no blocks from elsewhere
- ``sleep_mode_*``, ``rl_weight_update_*``: engines do not sleep, and their weights do not change
- ``mm_cache_*``: prompts are text; ``corrupted_requests``: sampling raises an error where logits are no numbers
- ``request_num_preemptions``: the sum that dashboards show is there
- ``kv_block_*``: the ages of blocks are not kept
- ``estimated_*_per_gpu_total``: estimates that were never measured

In vLLM's dashboards (``examples/observability`` of its repository) these panels and lines stay empty: those of names
that are left out, which mostly need options of vLLM; those of adapters and speculation in servers without them; and
percentiles of ``iteration_tokens_total``, beside which its mean is shown.

Names of this server's own, with TensorRT-LLM's prefix, say how routers of mixtures of experts choose:
``trtllm_moe_routed_steps`` (a step counts once in each layer), ``trtllm_moe_experts_read`` and
``trtllm_moe_expert_choices`` by ``ep_rank`` (of ``--moe_ep_size``), and ``trtllm_moe_busiest_rank_choices``. The load
of ranks is even if ``busiest_rank_choices``, times the number of ranks, equals the sum of ``expert_choices``.
``trtllm_empty_answers_total`` counts choices of conversations without content and calls, by ``finished_reason``.

TensorRT-LLM's names are used where they mean the same. Its other names are of things that do not exist here, such as
steps for the context phase or the generation phase alone.
"""
