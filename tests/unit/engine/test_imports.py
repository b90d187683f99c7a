import subprocess
import sys

SCRIPT = """
import sys
for name in ("onnx", "onnx_ir", "ml_dtypes", "gguf", "torch", "huggingface_hub"):
    sys.modules[name] = None
import trtllm_lite.engine.difference, trtllm_lite.engine.inspect, trtllm_lite.engine.manifest
import trtllm_lite.engine.plan, trtllm_lite.engine.reader, trtllm_lite.engine.writer
assert not [name for name in sys.modules if name.startswith(("trtllm_lite.builder", "trtllm_lite.convert"))]
"""


def test_the_engine_needs_neither_the_builder_nor_its_dependencies() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
