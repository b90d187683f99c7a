"""/v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies."""

from functools import partial
from pathlib import Path

import msgspec

from trtllm_lite.errors import EngineError, LimitError, shown
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.http.messages import TEXT, Request, Response
from trtllm_lite.serve.served_model import ServedModel

_MAX_LOADED = 4096
_LONGEST_NAME = 256


class LoadBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request to load an adapter; ``model`` is the adapter's model, if the server has several."""

    lora_name: str
    lora_path: str
    model: str = ""


class UnloadBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request to unload an adapter; ``lora_int_id`` is accepted and ignored."""

    lora_name: str
    lora_int_id: int | None = None


async def load_lora_adapter(app: Application, request: Request) -> Response:
    """Give an adapter of the directory ``--lora_root`` a name, by which requests run with it."""
    body = app.decoder(request, LoadBody)(request.body)
    model, _ = app.served(request, body.model)
    if request.version:
        raise ApiError(
            400,
            f"{shown(request.model)} is shared by several models: name the one that is to have the adapter",
            param="model",
            code="shared_name",
        )
    root = _root_of(app)
    path = _checked_path(root, body.lora_path)
    if not 0 < len(body.lora_name) <= _LONGEST_NAME:
        raise ApiError(
            400, f"lora_name: expected 1 to {_LONGEST_NAME} characters", param="lora_name", code="invalid_value"
        )
    _check_room(app, model, body.lora_name)
    await model.prepare(partial(_check_adapter, model, body.lora_path, path, root))
    _check_room(app, model, body.lora_name)  # another request may have come first meanwhile
    model.add_adapter(body.lora_name, str(path), str(root))
    model.loaded.add(body.lora_name)
    return Response(200, f"Success: LoRA adapter {shown(body.lora_name)} added successfully.\n".encode(), TEXT)


async def unload_lora_adapter(app: Application, request: Request) -> Response:
    """Forget an adapter's name; requests that run with it go on."""
    body = app.decoder(request, UnloadBody)(request.body)
    _root_of(app)
    name = body.lora_name
    model = next((model for model in app.models if model.adapter(name) is not None), None)
    if model is None:
        raise ApiError(404, f"there is no adapter {shown(name)}", param="lora_name", code="adapter_not_found")
    if not isinstance(model, ServedModel) or name not in model.loaded:
        raise ApiError(
            403,
            f"{shown(name)} was given when the server started, and requests cannot unload it",
            param="lora_name",
            code="not_allowed",
        )
    model.loaded.remove(name)
    del model.adapters[name]
    return Response(200, f"Success: LoRA adapter {shown(name)} removed successfully.\n".encode(), TEXT)


def _check_room(app: Application, model: ServedModel, name: str) -> None:
    if name in app.names:
        raise ApiError(400, f"{shown(name)} is a model or an adapter already", param="lora_name", code="name_taken")
    if len(model.loaded) >= _MAX_LOADED:
        raise ApiError(
            400, f"requests have loaded {_MAX_LOADED} adapters already: unload one", code="too_many_adapters"
        )


def _check_adapter(model: ServedModel, given: str, path: Path, root: Path) -> None:
    try:
        model.check_adapter(str(path), str(root))
    except (EngineError, LimitError) as error:
        message = f"{shown(given)} is no adapter of this model: {error}".replace(str(path), given)
        raise ApiError(400, message, param="lora_path", code="invalid_value") from error


def _root_of(app: Application) -> Path:
    """The directory of adapters that requests may load. Raises ApiError 403 if there is none."""
    root = app.settings.lora_root
    if root is None:
        raise ApiError(
            403,
            "adapters are not loaded and unloaded by requests here: start the server with --lora_root DIR",
            code="not_allowed",
        )
    return root


def _checked_path(root: Path, given: str) -> Path:
    """The directory of an adapter, which has to be below ``root``."""
    try:
        path = (root / given).resolve() if "\0" not in given else root
        is_adapter = path.is_relative_to(root.resolve()) and (path / "adapter_config.json").is_file()
    except OSError:  # such as a name that file systems do not accept
        is_adapter = False
    if not is_adapter:
        raise ApiError(
            400,
            f"lora_path is {shown(given)}: expected a directory with an adapter_config.json, relative to --lora_root",
            param="lora_path",
            code="invalid_value",
        )
    return path
