"""The sentence that says which cached prefixes spare requests computation."""

from dataclasses import replace

import pytest

from tests.unit.runtime.doubles import fake_manifest
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.runtime.session.config import KvCacheConfig
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.prefix_reuse import told_reuse


def _manifest(*, has_states: bool) -> Manifest:
    manifest = fake_manifest()
    if not has_states:
        return manifest
    groups = [replace(group, kind=STATE) for group in manifest.kv_cache.groups]
    return replace(manifest, kv_cache=replace(manifest.kv_cache, groups=groups))


ON_HOST = KvCacheConfig(host_cache_size=4096)


@pytest.mark.parametrize(
    ("has_states", "options", "told"),
    [
        (False, RunnerOptions(), "reused, in blocks of 4 tokens"),
        (False, RunnerOptions(kv_cache=KvCacheConfig(enable_block_reuse=False)), "not reused"),
        (True, RunnerOptions(), "where prompts end or part"),
        (True, RunnerOptions(kv_cache=KvCacheConfig(state_snapshot_interval=3)), "after every 3 blocks of 4 tokens"),
        (True, RunnerOptions(enable_chunked_context=False), "with chunked context alone"),
        (True, RunnerOptions(kv_cache=ON_HOST), "part; what the KV cache has no room for goes to 4,096 bytes of host"),
        (False, RunnerOptions(kv_cache=ON_HOST), "4 tokens; what the KV cache has no room for goes to 4,096"),
    ],
)
def test_reuse_is_told(has_states: bool, options: RunnerOptions, told: str) -> None:
    assert told in told_reuse(_manifest(has_states=has_states), options)
