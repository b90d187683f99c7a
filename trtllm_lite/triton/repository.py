"""Writes a model repository of an engine for Triton Inference Server."""

import shutil
from pathlib import Path

from trtllm_lite.common.files import new_directory, require_space
from trtllm_lite.engine.format import CONFIG_FILE, TOKENIZER_FILES
from trtllm_lite.engine.reader import find_engine, read_engine
from trtllm_lite.errors import ArgumentError, EngineError, shown
from trtllm_lite.runtime.session.opening import check_generates
from trtllm_lite.triton import configs
from trtllm_lite.triton.text_proto import Message, text_of

_VERSION = "1"  # name of the directory with a model's files
_ENGINE, _TOKENIZER = f"{_VERSION}/engine", f"{_VERSION}/tokenizer"


def write_repository(engine_dir: Path, output_dir: Path, path_on_server: str | None = None) -> list[str]:
    """Write the repository of an engine to ``output_dir``, which must be absent or empty; returns the models' names.

    The engine is copied, so that the repository works wherever it is put, unless ``path_on_server`` says where the
    server finds it. An engine without a tokenizer becomes the model ``tensorrt_llm`` alone, which takes token ids.

    Raises EngineError for a directory that holds no engine, OutputError if the repository cannot be written,
    ArgumentError for an encoder's engine, or a ``path_on_server`` that is not absolute.
    """
    file = find_engine(engine_dir)
    manifest, source = read_engine(file).manifest, file.parent
    check_generates(manifest, engine_dir)
    if path_on_server is not None and not path_on_server.startswith("/"):
        raise ArgumentError(
            f"engine_dir is {shown(path_on_server)}: expected an absolute path, which is where the server finds the "
            "engine"
        )
    tokenizer = [name for name in TOKENIZER_FILES if name in manifest.files]
    files = [*manifest.engine_files, CONFIG_FILE, *tokenizer]
    absent = [name for name in files if not (source / name).is_file()]
    if absent:
        raise EngineError(f"{source} lacks {', '.join(absent)}: copy the whole directory that `build` wrote")
    with new_directory(output_dir) as directory:
        engine = configs.tensorrt_llm(path_on_server or _ENGINE, manifest.target)
        written = {configs.TENSORRT_LLM: engine}
        if tokenizer:
            written = {
                configs.PREPROCESSING: configs.preprocessing(_TOKENIZER),
                configs.TENSORRT_LLM: engine,
                configs.POSTPROCESSING: configs.postprocessing(_TOKENIZER),
                configs.ENSEMBLE: configs.ensemble(),
            }
        for name, config in written.items():
            _write_model(directory / name, config)
        if path_on_server is None:
            require_space(directory, sum((source / name).stat().st_size for name in files))
            _copy(source, files, directory / configs.TENSORRT_LLM / _ENGINE)
        for name in (configs.PREPROCESSING, configs.POSTPROCESSING):
            if name in written:
                _copy(source, tokenizer, directory / name / _TOKENIZER)
    return list(written)


def _write_model(directory: Path, config: Message) -> None:
    """Write a model's directory: its configuration, and a version, which is empty for an ensemble."""
    version = directory / _VERSION
    version.mkdir(parents=True)
    (directory / "config.pbtxt").write_text(text_of(config), "ascii")
    if config.get("backend") == "python":
        module = f"trtllm_lite.triton.{config['name']}"
        (version / "model.py").write_text(f"from {module} import TritonPythonModel as TritonPythonModel\n", "ascii")


def _copy(source: Path, names: list[str], directory: Path) -> None:
    directory.mkdir()
    for name in names:
        shutil.copyfile(source / name, directory / name)
