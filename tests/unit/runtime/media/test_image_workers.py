"""Images are prepared in processes whose end, by a crash, too much memory or time, does no harm to later images."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError

import numpy as np
import pytest
from PIL import Image

from tests.unit.runtime.media.checkpoints import CHECKPOINTS, write_checkpoint
from tests.unit.runtime.media.odd_images import odd_image
from tests.unit.runtime.media.test_images import bomb, encoded
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, OverloadedError
from trtllm_lite.runtime.media import image_workers
from trtllm_lite.runtime.media.image_workers import ImageWorkers
from trtllm_lite.runtime.media.images import ImageLimits, read_image
from trtllm_lite.runtime.media.prepared import PreparedImage, file_digest, prepare
from trtllm_lite.runtime.media.processors.processor import ImageProcessor
from trtllm_lite.runtime.media.processors.read import read_processor

LIMITS = ImageLimits(max_image_pixels=1 << 20, max_image_bytes=1 << 20)


@pytest.fixture(scope="module")
def processor(tmp_path_factory) -> ImageProcessor:
    return read_processor(write_checkpoint(tmp_path_factory.mktemp("siglip"), "siglip"))


@pytest.fixture
def workers(processor):
    made: list[ImageWorkers] = []

    def make(limits: ImageLimits = LIMITS, num_workers: int = 1, **options) -> ImageWorkers:
        made.append(ImageWorkers(processor, limits, num_workers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def process_of(made: ImageWorkers):
    """The process of an object that has one, and no image."""
    (worker,) = made._idle
    return worker._process


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        os.sched_yield()


def prepared(made: ImageWorkers, content: bytes, is_alone: bool = True) -> PreparedImage:
    return made.submit(content, is_alone).result()


def assert_same(found: PreparedImage, expected: PreparedImage) -> None:
    np.testing.assert_array_equal(found.patches.rows, expected.patches.rows)
    assert found.patches.grids == expected.patches.grids
    assert found.patches.parts == expected.patches.parts
    assert found.patches.num_tokens == expected.patches.num_tokens
    assert (found.text, found.height, found.width) == (expected.text, expected.height, expected.width)
    assert found.digest == expected.digest


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_images_are_as_in_this_process(name, tmp_path):
    processor = read_processor(write_checkpoint(tmp_path, name))
    made = ImageWorkers(processor, LIMITS, num_workers=1)
    for seed in range(12):
        is_alone = seed % 2 == 0
        expected = prepare(odd_image(seed), LIMITS, processor, is_alone)
        assert_same(prepared(made, odd_image(seed), is_alone), expected)
    made.close()


def test_refusals_are_those_of_this_process_and_leave_the_process(workers):
    made = workers()
    prepared(made, odd_image(0))
    pid = process_of(made).pid
    for content in (b"", b"no image", odd_image(0)[:40], bomb(30_000, 30_000), bomb(2000, 2000), bytes(2 << 20)):
        with pytest.raises((ArgumentError, LimitError)) as expected:
            read_image(content, LIMITS)
        with pytest.raises((ArgumentError, LimitError)) as found:
            prepared(made, content)
        if content != bomb(30_000, 30_000):  # Pillow has a bound of its own
            assert str(found.value).partition(" object at ")[0] == str(expected.value).partition(" object at ")[0]
        assert type(found.value) is type(expected.value)
    assert process_of(made).pid == pid


def test_a_header_that_states_too_much_is_refused_at_once(workers):
    made = workers(ImageLimits())
    with pytest.raises(LimitError, match=r"1,000,000 × 1,000 pixels .* exceeds max_image_pixels"):
        made.submit(bomb(1000, 1_000_000))
    assert not made._idle  # no process has started


def test_what_the_process_of_no_image_knows_is_refused_there(workers):
    """The extents of an AVIF file are no matter of a few bytes."""
    with pytest.raises(LimitError, match="exceeds max_image_pixels"):
        prepared(workers(), encoded(Image.new("RGB", (2000, 600)), "AVIF"))


def test_a_process_that_was_killed_is_started_again(workers):
    made = workers()
    prepared(made, odd_image(0))
    process = process_of(made)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert prepared(made, odd_image(1)).height
    assert process_of(made) is not process


@pytest.fixture
def crashing(monkeypatch, tmp_path):
    """The worker is replaced by one that does something over images of this content, and is otherwise the same."""

    def make(name: str, action: str) -> None:
        before = "    try:\n        image = prepare"
        text = image_workers._WORKER.read_text()
        assert before in text
        text = text.replace(before, f'    if content == b"{name}":\n        {action}\n{before}')
        (tmp_path / "worker.py").write_text(text)
        monkeypatch.setattr(image_workers, "_WORKER", tmp_path / "worker.py")

    return make


def test_an_image_that_ends_the_process_is_refused(crashing, workers):
    crashing("crash", "import os; os.abort()")
    made = workers()
    with pytest.raises(ArgumentError, match=rf"ended \(status -{int(signal.SIGABRT)}\) over this one: expected"):
        prepared(made, b"crash")
    assert prepared(made, odd_image(0)).height


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        "[]",
        "{'error': 'SystemExit', 'message': ''}",
        "{**sound, 'grids': [[1, 1]]}",
        "{**sound, 'grids': [[-1, -256]]}",
        "{**sound, 'grids': []}",
        "{**sound, 'columns': 1 << 40}",
        "{**sound, 'parts': [1 << 20, 1 << 20]}",
        "{**sound, 'num_tokens': 1 << 40}",
        "{**sound, 'extents': [1 << 20, 1 << 20]}",
        "{**sound, 'digest': 'x'}",
        "'x' * (2 << 20)",
    ],
)
def test_nonsense_that_a_process_answers_is_refused(answer, crashing, workers):
    sound = {"extents": [1, 1], "digest": "", "rows": 256, "columns": 588, "grids": [[16, 16]]}
    sound |= {"parts": [0, 0], "num_tokens": 256}
    crashing("nonsense", f"sound = {sound}; return {answer}")
    made = workers()
    with pytest.raises(ArgumentError, match=r"ended .* over this one"):
        prepared(made, b"nonsense")
    assert prepared(made, odd_image(0)).height


def test_an_image_that_takes_too_long_is_refused(workers):
    """The process is stopped by a signal, as if it computed without end."""
    made = workers(max_seconds=600)
    prepared(made, odd_image(0))
    stopped = process_of(made)
    stopped.send_signal(signal.SIGSTOP)
    made._max_seconds = 0.05
    with pytest.raises(LimitError, match=r"not prepared after 0\.05 s"):
        prepared(made, odd_image(0))
    assert stopped.poll() == -signal.SIGKILL
    made._max_seconds = 600
    assert prepared(made, odd_image(0)).height


def test_an_image_that_needs_too_much_memory_is_refused(monkeypatch, workers):
    monkeypatch.setattr(image_workers, "_SPARE_BYTES", 1 << 24)
    monkeypatch.setattr(image_workers, "_BYTES_PER_PIXEL", 0)
    made = workers(ImageLimits(max_image_bytes=1 << 20))
    with pytest.raises(LimitError, match="more memory than there is"):
        prepared(made, encoded(Image.new("RGB", (4000, 4000))))
    assert prepared(made, odd_image(0)).height


def test_an_image_whose_processing_needs_too_much_memory_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(image_workers, "_SPARE_BYTES", 1 << 25)
    monkeypatch.setattr(image_workers, "_BYTES_PER_PIXEL", 0)
    size = {"longest_edge": 4096}
    processor = read_processor(write_checkpoint(tmp_path, "smolvlm", size=size, max_image_size={"longest_edge": 512}))
    made = ImageWorkers(processor, ImageLimits(max_image_bytes=1 << 20), num_workers=1)
    with pytest.raises(LimitError, match=r"400 × 400 pixels .* cannot be processed: it needs more memory"):
        prepared(made, encoded(Image.new("RGB", (400, 400))))
    made.close()


def test_the_largest_image_fits_into_the_memory(workers):
    """An image with transparency needs the most copies."""
    made = workers(ImageLimits(max_image_pixels=1 << 22, max_image_bytes=1 << 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert prepared(made, encoded(Image.new("LA", (1 << 11, 1 << 11)), exif=exif)).height == 1 << 11


def test_large_patches_come_whole(tmp_path):
    """Memory that they were in is given back, and later images are right."""
    changes = {"size": {"longest_edge": 1 << 24, "shortest_edge": 7_000_000}}
    processor = read_processor(write_checkpoint(tmp_path, "qwen3-vl", **changes))
    made = ImageWorkers(processor, LIMITS, num_workers=1)
    for seed in (0, 4, 7):
        assert_same(prepared(made, odd_image(seed)), prepare(odd_image(seed), LIMITS, processor))
    made.close()


def test_the_process_ends_with_its_object(processor):
    made = ImageWorkers(processor, LIMITS, num_workers=1)
    prepared(made, odd_image(0))
    process = process_of(made)
    made.close()
    assert process.poll() is not None


def test_several_processes_work_at_once(workers):
    """An image is prepared while the process of another one is stopped."""
    made = workers(num_workers=2, max_seconds=600)
    prepared(made, odd_image(0))
    process = process_of(made)
    process.send_signal(signal.SIGSTOP)
    first = made.submit(odd_image(1))
    wait_until(lambda: not made._idle)
    assert prepared(made, odd_image(2)).height
    assert not first.done()
    process.send_signal(signal.SIGCONT)
    assert first.result().height


def test_images_that_wait_are_counted(processor):
    """The only process is stopped, so that images wait for it."""
    made = ImageWorkers(processor, LIMITS, num_workers=1, max_waiting=2, max_seconds=600)
    prepared(made, odd_image(0))
    process = process_of(made)
    process.send_signal(signal.SIGSTOP)
    futures = [made.submit(odd_image(seed)) for seed in range(3)]
    with pytest.raises(OverloadedError, match="at most 2 images that wait"):
        made.submit(odd_image(0))
    assert futures[2].cancel()
    futures.append(made.submit(odd_image(3)))
    process.send_signal(signal.SIGCONT)
    assert [future.result().height > 0 for future in (*futures[:2], futures[3])] == [True] * 3
    assert prepared(made, odd_image(0)).height
    made.close()


def test_images_are_awaited(processor):
    made = ImageWorkers(processor, LIMITS, num_workers=2)

    async def prepare_two() -> list[PreparedImage]:
        return await asyncio.gather(made.prepare(odd_image(1)), made.prepare(odd_image(2), is_alone=False))

    for seed, found in enumerate(asyncio.run(prepare_two()), 1):
        assert_same(found, prepare(odd_image(seed), LIMITS, processor, is_alone=seed == 1))
    with pytest.raises(ArgumentError, match="in no known format"):
        asyncio.run(made.prepare(b"no image"))
    made.close()


def test_an_awaited_image_that_is_cancelled_is_not_prepared(processor):
    made = ImageWorkers(processor, LIMITS, num_workers=1, max_seconds=600)
    prepared(made, odd_image(0))
    process = process_of(made)
    process.send_signal(signal.SIGSTOP)
    running = made.submit(odd_image(1))

    async def give_up() -> None:
        waiting = asyncio.ensure_future(made.prepare(odd_image(2)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    assert made._num_outstanding == 1
    process.send_signal(signal.SIGCONT)
    assert running.result().height
    made.close()


def test_many_images_are_prepared_in_order(workers, processor):
    made = workers(num_workers=2, max_waiting=1)
    contents = [odd_image(seed) for seed in range(9)]
    for content, found in zip(contents, made.prepare_all(contents), strict=True):
        assert_same(found, prepare(content, LIMITS, processor))
    with pytest.raises(ArgumentError, match="in no known format"):
        list(made.prepare_all([odd_image(0), b"no image", odd_image(1)]))


def test_images_that_wait_are_cancelled_at_the_end(processor):
    made = ImageWorkers(processor, LIMITS, num_workers=1, max_seconds=600)
    prepared(made, odd_image(0))
    process = process_of(made)
    process.send_signal(signal.SIGSTOP)
    running, waiting = made.submit(odd_image(1)), made.submit(odd_image(2))
    wait_until(running.running)
    waiting.add_done_callback(lambda _: process.send_signal(signal.SIGCONT))
    made.close()
    assert running.result().height
    with pytest.raises(CancelledError):
        waiting.result()


@pytest.mark.parametrize("executable", ["/nonexistent/python", None])
def test_a_process_that_does_not_start_is_an_error(executable, monkeypatch, workers):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(EngineError, match=r"does not start .*: let this process start Python"):
        prepared(workers(), b"")


def test_a_process_that_ends_at_once_is_an_error(monkeypatch, tmp_path, workers):
    monkeypatch.setattr(image_workers, "_WORKER", tmp_path / "absent.py")
    with pytest.raises(EngineError, match=r"does not start \(status -?\d+\)"):
        prepared(workers(), b"")


def test_a_fork_has_a_process_of_its_own(workers):
    made = workers()
    prepared(made, odd_image(0))
    ours = process_of(made).pid
    child = os.fork()
    if child == 0:
        try:
            prepared(made, odd_image(1))
            is_other = process_of(made).pid != ours
            made.close()
            os._exit(0 if is_other else 1)
        finally:
            os._exit(2)  # or else the child would run the remaining tests
    assert os.waitpid(child, 0)[1] == 0
    assert prepared(made, odd_image(2)).height
    assert process_of(made).pid == ours


@pytest.mark.parametrize("name", ["num_workers", "max_waiting", "max_seconds"])
def test_a_number_that_is_none_is_refused(name, processor):
    with pytest.raises(ArgumentError, match=f"{name} is 0: expected a positive number"):
        ImageWorkers(processor, LIMITS, **{name: 0})


def test_digests_tell_images_and_processors_apart(processor, tmp_path):
    other = read_processor(write_checkpoint(tmp_path, "siglip", resample=2))
    pixels = np.arange(12, dtype=np.uint8)
    images = [pixels.reshape(shape) for shape in ((1, 4, 3), (2, 2, 3), (4, 1, 3))] + [pixels[::-1].reshape(1, 4, 3)]
    digests = {prepare(image, LIMITS, which).digest for image in images for which in (processor, other)}
    assert len(digests) == 2 * len(images)
    assert prepare(images[0], LIMITS, processor).digest == prepare(images[0].copy(), LIMITS, processor).digest
    png, bmp = (encoded(Image.fromarray(images[1]), file_format) for file_format in ("PNG", "BMP"))
    assert prepare(png, LIMITS, processor).digest == prepare(bmp, LIMITS, processor).digest
    onevision = read_processor(write_checkpoint(tmp_path, "llava-onevision"))
    for which, is_same in ((processor, True), (onevision, False)):
        alone, among = (prepare(png, LIMITS, which, is_alone) for is_alone in (True, False))
        assert (alone.digest == among.digest) == is_same
    assert file_digest(png) == hashlib.sha256(png).digest() != file_digest(bmp)
