"""Signs provenance: a DSSE envelope beside the statement, made with a key in a PEM file.

The envelope (https://github.com/secure-systems-lab/dsse/blob/master/envelope.md) holds the bytes of the statement and
in-toto's name for this type of payload, so that cosign and in-toto can read it. Needs the extra ``sign``.
"""

import json
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES
from trtllm_lite.errors import ArgumentError, EngineError

SIGNATURE_FILE = "provenance.dsse.json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAX_KEY_BYTES = 1 << 16
_REMEDY = "do not trust the engine, or pass the public key of its signer"


def signed(statement: bytes, key_file: Path) -> tuple[str, str]:
    """The envelope of ``statement``, as JSON, and the id of the key that signed it.

    ``key_file`` is a private key in PEM (PKCS #8) without a password: Ed25519, ECDSA or RSA. Raises ArgumentError.
    """
    libraries = _libraries()
    signer = _parsed(
        key_file, lambda data: libraries.CryptoSigner(libraries.load_pem_private_key(data, None)), "a private key"
    )
    envelope = libraries.Envelope(statement, _PAYLOAD_TYPE, {})
    signature = envelope.sign(signer)
    return json.dumps(envelope.to_dict(), indent=2, sort_keys=True) + "\n", str(signature.keyid)


def check_signature(statement: bytes, directory: Path, key_file: Path) -> str:
    """The id of the public key in ``key_file``, whose private key has signed the ``statement`` of ``directory``.

    Raises ArgumentError for a file without a public key in PEM, EngineError if there is no such signature.
    """
    libraries = _libraries()
    key = _parsed(
        key_file, lambda data: libraries.SSlibKey.from_crypto(libraries.load_pem_public_key(data)), "a public key"
    )
    path = directory / SIGNATURE_FILE
    try:
        found = json.loads(read_foreign(path, MAX_JSON_BYTES, inside=directory))
        envelope = libraries.Envelope.from_dict(found)
    except FileNotFoundError as error:
        raise EngineError(f"{directory} is not signed: it has no {SIGNATURE_FILE}: {_REMEDY}") from error
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}: {_REMEDY}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError(f"{path} is no DSSE envelope ({one_line(str(error))}): {_REMEDY}") from error
    if (envelope.payload, envelope.payload_type) != (statement, _PAYLOAD_TYPE):
        raise EngineError(f"{path} signs another statement than the one beside it: {_REMEDY}")
    try:
        envelope.verify([key], 1)
    except libraries.VerificationError as error:
        raise EngineError(f"{path} has no valid signature by the key of {key_file}: {_REMEDY}") from error
    return str(key.keyid)


def _parsed(key_file: Path, parse: Any, what: str) -> Any:
    try:
        return parse(read_foreign(key_file, _MAX_KEY_BYTES))
    except OSError as error:
        raise ArgumentError(f"key {key_file} cannot be read ({error.strerror}): expected a PEM file") from error
    except Exception as error:
        reason = one_line(str(error)) or type(error).__name__
        raise ArgumentError(
            f"key {key_file} is not {what} that can be used ({reason}): expected PEM, without a password, as `openssl "
            "genpkey -algorithm ed25519` and `openssl pkey -pubout` write it"
        ) from error


class _Libraries:
    """The libraries of the extra ``sign``."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import VerificationError
        from securesystemslib.signer import CryptoSigner, SSlibKey

        self.load_pem_private_key, self.load_pem_public_key = load_pem_private_key, load_pem_public_key
        self.Envelope, self.VerificationError = Envelope, VerificationError
        self.CryptoSigner, self.SSlibKey = CryptoSigner, SSlibKey


def _libraries() -> _Libraries:
    try:
        return _Libraries()
    except ImportError as error:
        raise ArgumentError(
            "signatures need securesystemslib, which is not installed: pip install 'trtllm_lite[sign]'"
        ) from error
