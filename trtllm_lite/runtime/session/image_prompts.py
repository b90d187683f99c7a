"""Turns prompts with images into token ids, and rows of a vision tower that take the place of some of them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import IMAGE_PROCESSOR_FILE, VISION_TOWER
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, shown
from trtllm_lite.runtime.media.image_workers import ImageWorkers
from trtllm_lite.runtime.media.images import ImageLimits
from trtllm_lite.runtime.media.prepared import PreparedImage, prepare
from trtllm_lite.runtime.media.processors.settings import read_json
from trtllm_lite.runtime.session.image_encoder import ImageEncoder, open_image_encoder
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.prompt_embeds import PromptEmbeds
from trtllm_lite.runtime.session.prompts import is_conversation

MEDIA = "multi_modal_data"
"""The key of a prompt dictionary that has {"image": image or images}; the name is vLLM's."""
_EXPECTED = f'expected {{"prompt": text, "{MEDIA}": {{"image": image or list of images}}}}'
_IMAGE_KEYS = ("image_token_id", "image_token_index")
_IMAGE_PARTS = ("image", "image_url", "input_image")
CACHE_BYTES = 256 << 20
"""Bytes of rows of images that are kept for the next prompt with the same image."""


@dataclass
class _RowCache:
    """Rows of images by digests of their pixels, the least recently used of which go first."""

    max_bytes: int = CACHE_BYTES
    rows: OrderedDict[bytes, NDArray[np.float32]] = field(default_factory=OrderedDict)
    num_bytes: int = 0
    lock: Lock = field(default_factory=Lock)

    def get(self, key: bytes) -> NDArray[np.float32] | None:
        with self.lock:
            if key in self.rows:
                self.rows.move_to_end(key)
            return self.rows.get(key)

    def put(self, key: bytes, rows: NDArray[np.float32]) -> None:
        with self.lock:
            if key in self.rows or rows.nbytes > self.max_bytes:
                return
            self.rows[key] = rows
            self.num_bytes += rows.nbytes
            while self.num_bytes > self.max_bytes:
                _, oldest = self.rows.popitem(last=False)
                self.num_bytes -= oldest.nbytes


@dataclass(frozen=True)
class ImagePrompts:
    """Reads the images of prompts for the vision tower of ``encoder``, whose tokens have the number ``image_id``.

    Rows of an image that a prompt of the same ``cache_salt`` had before are not computed again.
    """

    encoder: ImageEncoder
    image_id: int
    limits: ImageLimits = field(default_factory=ImageLimits)
    cache: _RowCache = field(default_factory=_RowCache)

    @property
    def placeholder(self) -> str:
        """What stands for an image in a text."""
        return self.encoder.processor.placeholder

    def see(self, source: Any, *, is_alone: bool) -> PreparedImage:
        """An image, given as bytes of a file, a path, a PIL image or an array. Raises the errors of :func:`prepare`."""
        return prepare(source, self.limits, self.encoder.processor, is_alone)

    @cached_property
    def workers(self) -> ImageWorkers:
        """Processes of bounded memory and time that read images of others."""
        return ImageWorkers(self.encoder.processor, self.limits)

    def expand(self, name: str, text: str, images: Sequence[PreparedImage]) -> str:
        """``text``, which has a placeholder for each image, with the texts of the images. Raises ArgumentError."""
        parts = text.split(self.placeholder)
        if len(parts) - 1 != len(images):
            raise ArgumentError(
                f"{name} has {len(parts) - 1} times {self.placeholder} and {len(images)} images: expected it once for "
                "each image, in the order of the images"
            )
        return parts[0] + "".join(image.text.text + part for image, part in zip(images, parts[1:], strict=True))

    def place(
        self, name: str, ids: NDArray[np.int32], images: Sequence[PreparedImage], cache_salt: str
    ) -> tuple[NDArray[np.int32], PromptEmbeds]:
        """Token ids of an expanded text with as many tokens of images as these have rows, and the rows.

        Raises ArgumentError for other numbers of tokens; the errors of ``ImageEncoder.submit`` and of its handles.
        """
        runs = np.array([count for image in images for count in image.text.repeats], np.int64)
        is_image = ids == self.image_id
        if is_image.sum() != len(runs):
            raise ArgumentError(
                f"{name} has {is_image.sum()} tokens {self.image_id}, and its images have {len(runs)} runs of them: "
                f"write {self.placeholder} for images alone"
            )
        counts = np.ones(len(ids), np.int64)
        counts[is_image] = runs
        whole = np.repeat(ids, counts)
        places = np.flatnonzero(whole == self.image_id).astype(np.int32)
        rows, digests = self._rows(images, cache_salt)
        return whole, PromptEmbeds(places, rows, digests)

    def _rows(self, images: Sequence[PreparedImage], cache_salt: str) -> tuple[NDArray[np.float32], bytes]:
        """The rows of images, and a digest for each row."""
        keys = [blake2b(image.digest + cache_salt.encode(), digest_size=32).digest() for image in images]
        known = {key: rows for key in keys if (rows := self.cache.get(key)) is not None}
        missing = {key: image for key, image in zip(keys, images, strict=True) if key not in known}
        if missing:
            known |= zip(missing, self.encoder.encode([image.patches for image in missing.values()]), strict=True)
            for key in missing:
                self.cache.put(key, known[key])
        numbers = ((key, row) for key in keys for row in range(len(known[key])))
        digests = b"".join(blake2b(b"%d" % row, key=key, digest_size=16).digest() for key, row in numbers)
        return np.concatenate([known[key] for key in keys]), digests


def split_images(name: str, prompt: Any) -> tuple[Any, list[Any]]:
    """A prompt without its images, and these: of a dictionary those of MEDIA, of messages those among their parts."""
    if isinstance(prompt, Mapping) and MEDIA in prompt:
        media = prompt[MEDIA]
        if not isinstance(media, Mapping) or set(media) != {"image"}:
            raise ArgumentError(f"{name} has {MEDIA} {shown(media)}: {_EXPECTED}")
        given = media["image"]
        rest = {key: value for key, value in prompt.items() if key != MEDIA}
        return rest, list(given) if isinstance(given, list | tuple) else [given]
    return prompt, []


def split_message_images(messages: Any, *, from_data_urls: bool = False) -> tuple[Any, list[Any]]:
    """Chat messages whose image parts are {"type": "image"} alone, and what the parts had.

    Parts are those of OpenAI's API with data URLs ({"type": "image_url", "image_url": {"url": …}}) and
    {"type": "image", "image": image}, as in transformers. Raises ArgumentError for other URLs, and, with
    ``from_data_urls``, for all that is not in a data URL, such as paths of files.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return messages, []
    images: list[Any] = []
    split = [_message(message, images) for message in messages]
    if from_data_urls and not all(isinstance(image, bytes) for image in images):
        raise ArgumentError("an image is not in a data URL: expected image_url with data:image/…;base64,…")
    return split, images


def _message(message: Any, images: list[Any]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _IMAGE_PARTS:
            images.append(_source(part, str(kind)))
            parts.append({"type": "image"})
        else:
            parts.append(part)
    return {**message, "content": parts}


def _source(part: Mapping[str, Any], kind: str) -> Any:
    value = part.get("image" if kind == "image" else "image_url")
    url = value.get("url") if isinstance(value, Mapping) else value
    if kind == "image" and not (isinstance(url, str) and url.startswith("data:")):
        return url
    return from_data_url(url)


def from_data_url(url: Any) -> bytes:
    """The content of a data URL with base64 (RFC 2397). Raises ArgumentError for others, LimitError for a huge one."""
    import base64
    import binascii

    if not isinstance(url, str) or not url.startswith("data:"):
        raise ArgumentError(
            f"image_url is {shown(url)}: expected data:image/…;base64,…; URLs of other hosts are not fetched"
        )
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ArgumentError(f"image_url begins with {shown(head[:64])}: expected data:image/…;base64,…")
    most = ImageLimits().max_image_bytes
    if len(data) > most * 4 // 3 + 4:
        raise LimitError(f"image_url has {len(data):,} characters, which exceeds max_image_bytes ({most:,})")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ArgumentError(f"image_url holds no base64 ({error}): expected data:image/…;base64,…") from error


@dataclass(frozen=True)
class PromptImages:
    """The images of each of several prompts."""

    prompts: ImagePrompts | None
    images: Sequence[Sequence[PreparedImage]]

    def expand(self, row: int, name: str, text: str) -> str:
        """The text of prompt ``row`` with the texts of its images."""
        if self.prompts is None or not self.images[row]:
            return text
        return self.prompts.expand(name, text, self.images[row])

    def place(self, row: int, ids: NDArray[np.int32], cache_salt: str) -> tuple[NDArray[np.int32], PromptEmbeds | None]:
        """The token ids of prompt ``row`` with those of its images, and their rows; None if it has none."""
        if self.prompts is None or not self.images[row]:
            return ids, None
        name = f"prompt {row}" if len(self.images) > 1 else "the prompt"
        return self.prompts.place(name, ids, self.images[row], cache_salt)


def read_images(prompts: Any, chat: bool, vision: ImagePrompts | None) -> tuple[Any, PromptImages]:
    """``prompts`` without their images, and these, read.

    Raises ArgumentError for images of an engine without a vision tower, and the errors of ``ImagePrompts.see``.
    """
    single = isinstance(prompts, str | Mapping) or (chat and is_conversation(prompts))
    rows = [prompts] if single else prompts
    if not isinstance(rows, list | tuple):
        return prompts, PromptImages(None, ())
    split = [split_message_images(row) if chat else split_images("the prompt", row) for row in rows]
    if not any(images for _, images in split):
        return prompts, PromptImages(None, ())
    if vision is None:
        raise ArgumentError(
            "a prompt has images, and the engine has no vision tower: convert a model that takes images, without "
            "--text_only, and build it again"
        )
    seen = [[vision.see(image, is_alone=len(images) == 1) for image in images] for _, images in split]
    rest = [row for row, _ in split]
    return rest[0] if single else rest, PromptImages(vision, seen)


def open_image_prompts(native: Any, engine_dir: Path, options: RunnerOptions) -> ImagePrompts | None:
    """Load the vision tower beside a decoder's engine; None if there is none. Raises as ``open_image_encoder``."""
    encoder = open_image_encoder(native, engine_dir, options)
    if encoder is None:
        return None
    path = engine_dir / VISION_TOWER / IMAGE_PROCESSOR_FILE
    config = read_json(path).get("model")
    found = [config[key] for key in _IMAGE_KEYS if key in config] if isinstance(config, dict) else []
    if not found or not isinstance(found[0], int) or isinstance(found[0], bool) or found[0] < 0:
        keys = " or ".join(_IMAGE_KEYS)
        raise EngineError(f"{path} does not say which token stands for images ({keys}): convert and build again")
    return ImagePrompts(encoder, found[0])
