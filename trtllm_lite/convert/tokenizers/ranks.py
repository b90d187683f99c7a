"""Makes a byte-level BPE of tokens that are listed by rank, without merges, as tiktoken reads them.

A word that is a token is taken whole. In any other word, the neighbours whose union has the lowest rank are joined
first, from the left. A token always results from the same joins, so its last two parts are always the same. Hence the
list of all ways to join two tokens, in the order of ranks, works as merges: joins that tiktoken never makes are never
reached, and the ids are the same.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokenizers import Tokenizer, pre_tokenizers

from trtllm_lite.convert.gguf.pre_tokenizers import PreTokenizer
from trtllm_lite.convert.tokenizers.merges import check_lengths, joins
from trtllm_lite.errors import ConvertError

NUM_BYTES = 256  # every single byte is a token with a rank of its own


def rank_tokenizer(tokens: Mapping[bytes, int], special: Mapping[str, int], cuts: PreTokenizer) -> Tokenizer:
    """The tokenizer of ``tokens``, with their numbers and in the order of their ranks, that cuts texts by ``cuts``.

    The texts ``special``, with their numbers, are tokens, too; the caller says that they are found in texts. Raises
    ConvertError if two tokens have the same text or number.
    """
    spelling = _spelling()
    words = {token.decode("latin-1").translate(spelling): number for token, number in tokens.items()}
    check_lengths(words)
    vocab = {**words, **special}
    if len(vocab) < len(words) + len(special) or len(set(vocab.values())) < len(vocab):
        raise ConvertError(
            "the tokenizer has two tokens with the same text or number, expected different ones: download it again"
        )
    merges = [(left, right) for _, left, right in joins(words)]
    return replace(cuts, whole_words=True).tokenizer(vocab, merges)


def _spelling() -> dict[int, str]:
    """The printable character by which GPT-2's tokenizers spell a byte: its own, or else one above U+00FF."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = [ord(character) for character in alphabet if ord(character) < NUM_BYTES]
    others = [byte for byte in range(NUM_BYTES) if byte not in own]
    return dict(zip([*own, *others], alphabet, strict=True))
