"""Theory and certificates of dr_smoothing at N = 10,000, against scipy's binomial, and the kernels per copy: CPU time.

Run: ``python benchmarks/bench_certificates.py``. Arms take turns; scipy's arm is timed in the same rounds. Errors are
against exact integers, so that speed is not bought with digits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import receipt
from scipy.stats import binom

from steelyard.guard.dr_smoothing import certificates, core, theory
from steelyard.timing import interleaved

N = 10_000
POINTS = np.linspace(0.3, 0.7, 1000)
TEXT = ("Explain in plain words how a steelyard weighs a heavy load with a small sliding weight. " * 3)[:200]


def timed(arms: dict[str, Callable[[], object]], repeats: int, number: int) -> dict[str, float]:
    """Median CPU seconds of a call of each arm."""
    seconds = interleaved(arms, repeats=repeats, number=number, clock=time.process_time)
    return {name: statistics.median(values) for name, values in seconds.items()}


def points(repeats: int) -> dict[str, Any]:
    """Microseconds per point of the success probability: one number, and an array of 1,000."""
    t = core.vote_threshold(N)
    one = timed(
        {
            "defense_success_probability": lambda: theory.defense_success_probability(0.4, N),
            "scipy.stats.binom.cdf": lambda: binom.cdf(t, N, 0.4),
        },
        repeats,
        500,
    )
    many = timed(
        {
            "defense_success_probability": lambda: theory.defense_success_probability(POINTS, N),
            "scipy.stats.binom.cdf": lambda: binom.cdf(t, N, POINTS),
        },
        repeats,
        20,
    )
    return {
        "one point, us": {name: 1e6 * value for name, value in one.items()},
        "1,000 points, us per point": {name: 1e6 * value / POINTS.size for name, value in many.items()},
    }


def calls(repeats: int) -> dict[str, float]:
    """Milliseconds of whole calls with N = 10,000 copies, prompts of 10,000 characters or 10,000 samples."""
    arms: dict[str, Callable[[], object]] = {
        "success_probability_bounds": lambda: theory.success_probability_bounds(0.4, N),
        "required_copy_probability": lambda: theory.required_copy_probability(N, 0.01),
        "copies_needed, 8,000 to 10,000 copies": lambda: theory.copies_needed(0.4876, 0.01),
        "certify_from_samples, 10,000 samples": lambda: certificates.certify_from_samples(100, N, N),
        "ablation_certificate, 10,000 words": lambda: certificates.ablation_certificate(N, 500, 20),
        "swap_certificate, 20 tokens of 32,000": lambda: certificates.swap_certificate(0.99, 20, 0.9, 32_000),
        "break_probability swap, 10,000 characters": lambda: theory.break_probability(N, 200, 20, 0.1, 100),
        "break_probability patch, 10,000 characters": lambda: theory.break_probability(N, 200, 20, 0.1, 100, "patch"),
        "q_min, 200 characters": lambda: theory.q_min(200, 60, 10, 100, 10, 0.05),
    }
    return {name: 1e3 * value for name, value in timed(arms, repeats, 5).items()}


def kernels(repeats: int) -> dict[str, float]:
    """Microseconds per copy of a 200-character prompt: disrupt, and one vote of ten for it."""
    rng = np.random.default_rng(0)
    made = {
        "swap": core.disrupt_swap(0.1),
        "swap, letters": core.disrupt_swap(0.1, "letters"),
        "swap, bernoulli": core.disrupt_swap(0.1, mode="bernoulli"),
        "patch": core.disrupt_patch(0.1),
        "insert": core.disrupt_insert(0.1),
        "mask_words": core.disrupt_mask_words(0.3),
        "delete_words": core.disrupt_delete_words(0.3),
        "random": core.disrupt_random(),
    }
    votes = [True, False] * 5
    arms: dict[str, Callable[[], object]] = {
        name: (lambda kernel=kernel: (kernel(TEXT, rng), core.majority(votes))) for name, kernel in made.items()
    }
    return {name: 1e6 * value for name, value in timed(arms, repeats, 200).items()}


def largest_error() -> float:
    """Largest difference of the success probability from exact integers at N = 10,000."""
    errors = []
    for p in (Fraction(49, 100), Fraction(101, 200), Fraction(51, 100), Fraction(3, 5)):
        ones, zeros = p.numerator, p.denominator - p.numerator
        term = total = zeros**N
        for i in range(core.vote_threshold(N)):
            term = term * (N - i) * ones // ((i + 1) * zeros)
            total += term
        exact = float(Fraction(total, p.denominator**N))
        errors.append(abs(float(theory.defense_success_probability(float(p), N)) - exact))
    return max(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9, help="timed rounds")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "N": N,
        "clock": "process_time, median of the rounds",
        "success probability": points(arguments.repeats),
        "calls, ms": calls(arguments.repeats),
        "kernels and vote, us per copy of 200 characters": kernels(arguments.repeats),
        "largest error against exact integers": largest_error(),
        "targets": {"call at N = 10,000, ms": 10, "us per point": 50, "us per copy": 1000},
    }
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_certificates", figures))


if __name__ == "__main__":
    main()
