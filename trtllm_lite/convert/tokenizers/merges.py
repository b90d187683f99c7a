"""Finds the merges of a BPE vocabulary that does not list them: every way to join two pieces into a third."""

from collections.abc import Collection, Iterator

from trtllm_lite.errors import ConvertError

MAX_PIECE_CHARACTERS = 1024  # SentencePiece's default is 16; work grows with the square of the length


def check_lengths(pieces: Collection[str]) -> None:
    """Raise ConvertError for a piece so long that work on it takes minutes."""
    longest = max(map(len, pieces), default=0)
    if longest > MAX_PIECE_CHARACTERS:
        raise ConvertError(
            f"the tokenizer has a token of {longest} characters, expected at most {MAX_PIECE_CHARACTERS}: "
            "check the file"
        )


def joins(pieces: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each piece with the left and right part of every way to join it from two, in the order of ``pieces``."""
    for piece in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                yield piece, left, right
