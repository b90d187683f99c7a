"""Turns prompts with images into token ids, and rows of a vision tower that take the place of some of them."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import IMAGE_PROCESSOR_FILE, VISION_TOWER
from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.media.images import ImageLimits, Pixels, read_image
from trtllm_lite.runtime.media.placeholders import Placeholders, read_placeholders
from trtllm_lite.runtime.media.processors.processor import Patches
from trtllm_lite.runtime.session.image_encoder import ImageEncoder, open_image_encoder
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.prompt_embeds import PromptEmbeds
from trtllm_lite.runtime.session.prompts import is_conversation

MEDIA = "multi_modal_data"
"""The key of a prompt dictionary that has {"image": image or images}; the name is vLLM's."""
_EXPECTED = f'expected {{"prompt": text, "{MEDIA}": {{"image": image or list of images}}}}'
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
class SeenImage:
    """An image as a prompt has it: its patches, and a digest of its pixels."""

    patches: Patches
    digest: bytes


@dataclass(frozen=True)
class ImagePrompts:
    """Reads the images of prompts for the vision tower of ``encoder``.

    Rows of an image that a prompt of the same ``cache_salt`` had before are not computed again.
    """

    encoder: ImageEncoder
    placeholders: Placeholders
    limits: ImageLimits = field(default_factory=ImageLimits)
    cache: _RowCache = field(default_factory=_RowCache)

    def see(self, source: Any) -> SeenImage:
        """An image, given as bytes of a file, a path, a PIL image or an array.

        Raises ArgumentError and LimitError as :func:`read_image` does.
        """
        pixels: Pixels = read_image(source, self.limits)
        digest = blake2b(pixels.tobytes(), digest_size=32, person=b"%d,%d" % pixels.shape[:2])
        return SeenImage(self.encoder.processor.patches(pixels), digest.digest())

    def expand(self, name: str, text: str, images: Sequence[SeenImage]) -> str:
        """``text``, which has a placeholder for each image, with the tokens of the images. Raises ArgumentError."""
        found = text.count(self.placeholders.token)
        if found != len(images):
            raise ArgumentError(
                f"{name} has {found} times {self.placeholders.token} and {len(images)} images: expected it once for "
                "each image, in the order of the images"
            )
        return self.placeholders.expand(text, [image.patches for image in images])

    def embeds(self, name: str, ids: NDArray[np.int32], images: Sequence[SeenImage], cache_salt: str) -> PromptEmbeds:
        """The rows of ``images`` at the places of their tokens in ``ids``.

        Raises ArgumentError if these are not as many; the errors of ``ImageEncoder.submit`` and of its handles.
        """
        places = np.flatnonzero(ids == self.placeholders.token_id).astype(np.int32)
        wanted = sum(image.patches.num_tokens for image in images)
        if len(places) != wanted:
            raise ArgumentError(
                f"{name} has {len(places)} tokens {self.placeholders.token_id} ({self.placeholders.token}), and its "
                f"images have {wanted} rows: write {self.placeholders.token} for images alone"
            )
        salt = cache_salt.encode()
        keys = [blake2b(image.digest + salt, digest_size=32).digest() for image in images]
        known = {key: self.cache.get(key) for key in keys}
        missing = {key: image for key, image in zip(keys, images, strict=True) if known[key] is None}
        if missing:
            rows = self.encoder.submit([image.patches for image in missing.values()]).result()
            counts = [image.patches.num_tokens for image in missing.values()]
            for key, part in zip(missing, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
                self.cache.put(key, part)
                known[key] = part
        found = [own for key in keys if (own := known[key]) is not None]
        digests = b"".join(
            blake2b(b"%d" % row, key=key[:16], digest_size=16).digest()
            for key, own in zip(keys, found, strict=True)
            for row in range(len(own))
        )
        return PromptEmbeds(places, np.concatenate(found), digests)


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


def split_message_images(messages: Any) -> tuple[Any, list[Any]]:
    """Chat messages whose image parts are {"type": "image"} alone, and what the parts had.

    Parts are those of OpenAI's API with data URLs ({"type": "image_url", "image_url": {"url": …}}) and
    {"type": "image", "image": image}, as in transformers. Raises ArgumentError for other URLs.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return messages, []
    images: list[Any] = []
    return [_message(message, images) for message in messages], images


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
    images: Sequence[Sequence[SeenImage]]

    def expand(self, row: int, name: str, text: str) -> str:
        """The text of prompt ``row`` with the tokens of its images."""
        if self.prompts is None or not self.images[row]:
            return text
        return self.prompts.expand(name, text, self.images[row])

    def embeds(self, row: int, ids: NDArray[np.int32], cache_salt: str) -> PromptEmbeds | None:
        """The rows of the images of prompt ``row``; None if it has none."""
        if self.prompts is None or not self.images[row]:
            return None
        name = f"prompt {row}" if len(self.images) > 1 else "the prompt"
        return self.prompts.embeds(name, ids, self.images[row], cache_salt)


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
    seen = [[vision.see(image) for image in images] for _, images in split]
    rest = [row for row, _ in split]
    return rest[0] if single else rest, PromptImages(vision, seen)


def open_image_prompts(native: Any, engine_dir: Path, options: RunnerOptions) -> ImagePrompts | None:
    """Load the vision tower beside a decoder's engine; None if there is none. Raises as ``open_image_encoder``."""
    encoder = open_image_encoder(native, engine_dir, options)
    if encoder is None:
        return None
    return ImagePrompts(encoder, read_placeholders(engine_dir / VISION_TOWER / IMAGE_PROCESSOR_FILE))
