"""AutoRound's own settings (``quant_method: auto-round``) for the layouts of GPTQ and AWQ.

https://github.com/intel/auto-round; ``packing_format`` names the layout.
"""

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.awq import Awq
from trtllm_lite.convert.quantized.gptq import Gptq
from trtllm_lite.convert.quantized.method import Method
from trtllm_lite.errors import shown

_LAYOUTS = {"auto_round:auto_gptq": Gptq, "auto_round:auto_awq": Awq}


def auto_round(fields: ConfigFields) -> Method:
    """Return the method of the layout; layers with settings of their own have to be in floating point."""
    layout = fields.take("packing_format")
    if layout not in _LAYOUTS:
        fields.problem("packing_format", f"expected one of {', '.join(_LAYOUTS)}, found {shown(layout)}")
    overrides = fields.take("extra_config") or {}
    settings = overrides.values() if isinstance(overrides, dict) else [None]
    if not all(isinstance(entry, dict) and entry.get("bits", 0) in (16, 32) for entry in settings):
        fields.problem("extra_config", "layers with other bits are not supported")
    return _LAYOUTS.get(layout, Gptq)(fields)
