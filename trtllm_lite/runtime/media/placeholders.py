"""Spells the tokens of an image in a prompt: those that its rows replace, and the separators between them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite.errors import EngineError, shown
from trtllm_lite.runtime.media.processors.processor import Patches
from trtllm_lite.runtime.media.processors.settings import read_json

_AROUND, _GLOBAL = "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True)
class Placeholders:
    """``token``, of the number ``token_id``, stands for an image in a text; ``spell`` gives what takes its place.

    That has ``token`` as often as the image has rows. Chat templates write ``token`` once for each image.
    """

    token: str
    token_id: int
    spell: Callable[[Patches, str], str]

    def expand(self, text: str, images: list[Patches]) -> str:
        """``text`` with the tokens of ``images``, which it names in their order."""
        parts = text.split(self.token)
        spelled = [self.spell(image, self.token) for image in images]
        return parts[0] + "".join(image + part for image, part in zip(spelled, parts[1:], strict=True))


def _idefics3(image: Patches, token: str) -> str:
    """The tiles of the parts, row by row, and the squeezed whole image, which alone has no row and column."""
    rows, columns = image.parts
    seen = token * (image.num_tokens // len(image.grids))
    tiles = "".join(
        "".join(f"{_AROUND}<row_{row}_col_{column}>{seen}" for column in range(1, columns + 1)) + "\n"
        for row in range(1, rows + 1)
    )
    return f"{tiles}\n{_AROUND}{_GLOBAL}{seen}{_AROUND}" if tiles else f"{_AROUND}{_GLOBAL}{seen}{_AROUND}"


# By model_type: how an image is spelled, its token, and the key of config.json for the token's number.
_SPELLINGS: dict[str, tuple[Callable[[Patches, str], str], str, str]] = {
    "idefics3": (_idefics3, "<image>", "image_token_id"),
    "smolvlm": (_idefics3, "<image>", "image_token_id"),
}


def read_placeholders(path: Path) -> Placeholders:
    """How the model of the file beside a vision tower spells images. Raises EngineError for one that is unknown."""
    config = read_json(path).get("model")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(config, dict) or kind not in _SPELLINGS:
        raise EngineError(
            f"{path} is of a model of the type {shown(kind)}, whose prompts with images are unknown: expected "
            f"{', '.join(sorted(_SPELLINGS))}"
        )
    spell, token, key = _SPELLINGS[kind]
    number = config.get(key)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise EngineError(f"{key} of the model in {path} is {shown(number)}: expected the number of a token")
    return Placeholders(token, number, spell)
