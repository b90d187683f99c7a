"""Defines ModelNames: finds the engine, and its adapter, that a name in a request stands for."""

from collections.abc import Sequence
from random import Random

from trtllm_lite.errors import shown
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.served_engine import ServedEngine


class ModelNames:
    """Finds models by their own names, by names that several share, and by those of their adapters.

    ``random`` draws the model that gets a request for a shared name.
    """

    def __init__(self, models: Sequence[ServedEngine], random: Random) -> None:
        self._models = models
        self._random = random
        self._own = {name: model for model in models for name in model.settings.names}
        self.shared: dict[str, dict[ServedEngine, int]] = {}
        """The models that share a name, with their weights."""
        for model in models:
            for name, weight in model.settings.shares.items():
                self.shared.setdefault(name, {})[model] = weight

    def __contains__(self, name: str) -> bool:
        """Whether a model or an adapter is called that."""
        return name in self._own or name in self.shared or any(model.adapter(name) for model in self._models)

    def default(self) -> str:
        """The name for requests that give none. Raises ApiError 400 if several are possible."""
        whole = [model for model in self._models if model.settings.part_of is None]
        if len(whole) == 1:
            return whole[0].name
        if len(self.shared) == 1:
            ((name, versions),) = self.shared.items()
            if len(versions) == len(whole):
                return name
        message = f"model is missing: expected {self._known()}, or an adapter"
        raise ApiError(400, message, param="model", code="missing_required_parameter")

    def find(self, name: str) -> tuple[ServedEngine, LoRARequest | None]:
        """The engine called ``name`` or sharing that name, or the engine of the adapter called ``name``; the adapter.

        Raises ApiError 404.
        """
        if name in self._own:
            return self._own[name], None
        if name in self.shared:
            versions = self.shared[name]
            return self._random.choices(list(versions), list(versions.values()))[0], None
        for model in self._models:
            adapter = model.adapter(name)
            if adapter is not None:
                return model, adapter
        raise ApiError(
            404,
            f"there is no model {shown(name)}: expected {self._known()}, or an adapter",
            param="model",
            code="model_not_found",
        )

    def _known(self) -> str:
        return ", ".join(map(shown, (*self.shared, *(model.name for model in self._models))))
