"""How much a run tries: examples a law, and how long one law may take before it counts as hung."""

from __future__ import annotations

from typing import Any

# Where Hypothesis finds CI in the environment, it derandomizes whatever does not say otherwise.
PROFILES: dict[str, dict[str, Any]] = {
    "dev": {"max_examples": 25},
    "ci": {"max_examples": 100, "derandomize": True, "database": None},
    "nightly": {"max_examples": 2000, "derandomize": False},
}
HANG, PATIENCE = 300, 3  # seconds at least, and seconds for each example

GROWTH = 2.0  # one bit, by which a share may grow over a baseline's


def patience(profile: str, examples: int | None = None) -> int:
    """Seconds after which a law of so many examples is ended."""
    return max(HANG, PATIENCE * (examples or PROFILES[profile]["max_examples"]))


def growth(text: str) -> float:
    """An option's factor, at least 1; raises ValueError."""
    if not 1 <= float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


def positive(text: str) -> int:
    """An option's number, 1 or more; raises ValueError."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)
