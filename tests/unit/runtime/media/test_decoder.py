"""Images are decoded in a process whose end, by a crash, too much memory or time, does no harm to later images."""

import os
import signal
import sys

import numpy as np
import pytest
from PIL import Image

from tests.unit.runtime.media.odd_images import odd_image
from tests.unit.runtime.media.test_images import bomb, encoded
from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime.media import decoder
from trtllm_lite.runtime.media.decoder import ImageDecoder
from trtllm_lite.runtime.media.images import ImageLimits, read_image

LIMITS = ImageLimits(max_image_pixels=1 << 20, max_image_bytes=1 << 20)


@pytest.fixture(scope="module")
def shared():
    made = ImageDecoder(LIMITS)
    yield made
    made.close()


def process_of(made: ImageDecoder):
    assert made._worker is not None
    return made._worker._process


def test_images_are_as_in_this_process(shared):
    for seed in range(24):
        np.testing.assert_array_equal(shared.read(odd_image(seed)), read_image(odd_image(seed), LIMITS))


def test_refusals_are_those_of_this_process_and_leave_the_process(shared):
    shared.read(odd_image(0))
    pid = process_of(shared).pid
    for content in (b"", b"no image", odd_image(0)[:40], bomb(30_000, 30_000), bomb(2000, 2000), bytes(2 << 20)):
        with pytest.raises((ArgumentError, LimitError)) as expected:
            read_image(content, LIMITS)
        with pytest.raises(type(expected.value)) as found:
            shared.read(content)
        assert str(found.value).partition(" object at ")[0] == str(expected.value).partition(" object at ")[0]
    assert process_of(shared).pid == pid


def test_a_process_that_was_killed_is_started_again(shared):
    shared.read(odd_image(0))
    process = process_of(shared)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert shared.read(odd_image(1)).size
    assert process_of(shared) is not process


def test_an_image_that_ends_the_process_is_refused(monkeypatch, tmp_path):
    """The worker is replaced by one that crashes over an image of this content, and is otherwise the same."""
    text = decoder._WORKER.read_text().replace(
        "    try:\n        pixels", "    _crash(content)\n    try:\n        pixels"
    )
    crash = 'def _crash(content):\n    if content == b"crash":\n        import os\n        os.abort()\n\n\n'
    (tmp_path / "worker.py").write_text(text.replace("def _answer", crash + "def _answer"))
    monkeypatch.setattr(decoder, "_WORKER", tmp_path / "worker.py")
    made = ImageDecoder(LIMITS)
    with pytest.raises(ArgumentError, match=rf"ended \(status -{int(signal.SIGABRT)}\) over this one: expected"):
        made.read(b"crash")
    assert made.read(odd_image(0)).size
    made.close()


def test_an_image_that_takes_too_long_is_refused():
    """The process is stopped by a signal, as if it computed without end."""
    made = ImageDecoder(LIMITS, max_seconds=600)
    made.read(odd_image(0))
    stopped = process_of(made)
    stopped.send_signal(signal.SIGSTOP)
    made._max_seconds = 0.05
    with pytest.raises(LimitError, match=r"not decoded after 0\.05 s"):
        made.read(odd_image(0))
    assert stopped.poll() == -signal.SIGKILL
    made._max_seconds = 600
    assert made.read(odd_image(0)).size
    made.close()


def test_an_image_that_needs_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(decoder, "_SPARE_BYTES", 1 << 24)
    monkeypatch.setattr(decoder, "_BYTES_PER_PIXEL", 0)
    made = ImageDecoder(ImageLimits(max_image_bytes=1 << 20))
    with pytest.raises(LimitError, match="more memory than there is"):
        made.read(encoded(Image.new("RGB", (4000, 4000))))
    assert made.read(odd_image(0)).size
    made.close()


def test_the_largest_image_fits_into_the_memory():
    """An image with transparency needs the most copies."""
    made = ImageDecoder(ImageLimits(max_image_pixels=1 << 22, max_image_bytes=1 << 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert made.read(encoded(Image.new("LA", (1 << 11, 1 << 11)), exif=exif)).shape == (1 << 11, 1 << 11, 3)
    made.close()


def test_the_process_ends_with_the_decoder():
    made = ImageDecoder(LIMITS)
    made.read(odd_image(0))
    process = process_of(made)
    del made
    assert process.poll() is not None


@pytest.mark.parametrize("executable", ["/nonexistent/python", None])
def test_a_process_that_does_not_start_is_an_error(executable, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(EngineError, match=r"does not start .*: let this process start Python"):
        ImageDecoder(LIMITS).read(b"")


def test_a_process_that_ends_at_once_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(decoder, "_WORKER", tmp_path / "absent.py")
    with pytest.raises(EngineError, match=r"does not start \(status -?\d+\)"):
        ImageDecoder(LIMITS).read(b"")


def test_a_fork_has_a_process_of_its_own(shared):
    shared.read(odd_image(0))
    ours = process_of(shared).pid
    child = os.fork()
    if child == 0:
        try:
            shared.read(odd_image(1))
            is_other = process_of(shared).pid != ours
            shared.close()
            os._exit(0 if is_other else 1)
        finally:
            os._exit(2)  # or else the child would run the remaining tests
    assert os.waitpid(child, 0)[1] == 0
    assert shared.read(odd_image(2)).size
    assert process_of(shared).pid == ours


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ArgumentError, match="max_seconds is 0: expected a positive number"):
        ImageDecoder(LIMITS, max_seconds=0)
