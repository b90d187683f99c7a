"""Random numbers: the published test vectors, and uniformity of the draws."""

import numpy as np


def test_known_answers(core):
    """The vectors of Random123's kat_vectors for philox4x32, 10 rounds."""
    ones = 0xFFFFFFFF
    assert core.philox4x32_10([0, 0, 0, 0], [0, 0]) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert core.philox4x32_10([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi_counter = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    expected = [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert core.philox4x32_10(pi_counter, [0xA4093822, 0x299F31D0]) == expected


def test_draws_are_uniform_over_tokens_and_over_seeds(core):
    by_token = np.array([core.token_uniform(seed=7, token_index=i) for i in range(20000)])
    by_seed = np.array([core.token_uniform(seed=i, token_index=0) for i in range(20000)])
    by_sequence = np.array([core.token_uniform(seed=7, token_index=0, sequence_index=i) for i in range(20000)])
    for draws in (by_token, by_seed, by_sequence):
        assert draws.min() >= 0
        assert draws.max() < 1
        counts = np.histogram(draws, bins=50, range=(0, 1))[0]
        chi_square = ((counts - 400) ** 2 / 400).sum()
        assert chi_square < 110  # 49 degrees of freedom: exceeded with probability 1e-6
    assert len(set(by_token) | set(by_seed) | set(by_sequence)) > 59990
