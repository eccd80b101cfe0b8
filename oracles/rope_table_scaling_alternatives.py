"""Null models and known mistakes of rope_table where frequencies are scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles import rope_scaling, rope_table_alternatives
from tightrope.oracles.rope_frequency_alternatives import mistaken
from tightrope.oracles.rope_table_scaling import scaling_of
from tightrope.oracles.rope_table_scaling_budget import asked, by_axis, chosen
from tightrope.rope_scaling import RopeScaling

Outputs = dict[str, Array]
Models = Callable[[Any, Any, Mapping[str, Array]], Any]


def nulls(truth: Any, case: Any, inputs: Mapping[str, Array]) -> dict[str, Outputs]:
    """Models that do nothing useful: no rotation, and every position late by one."""
    scaling = scaling_of(case)
    if scaling is None:
        return rope_table_alternatives.nulls(truth, case, inputs)
    return _of_axes(rope_table_alternatives.nulls, truth, case, inputs, scaling)


def alternatives(
    truth: Any, case: Any, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Outputs]]:
    """(sentence, outputs) of known mistakes, one at a time."""
    scaling = scaling_of(case)
    if scaling is None:
        yield from rope_table_alternatives.alternatives(truth, case, inputs)
        return
    with np.errstate(all="ignore"):  # frequencies may be 0
        plain = rope_table_alternatives.alternatives
        yield from _of_axes(plain, truth, case, inputs, scaling).items()
        right = _of_axes(_right, truth, case, inputs, scaling)[""]
        factor = rope_scaling.attention_factor(scaling)
        for power, told in ((0, "left out"), (2, "squared"), (-1, "divided by")):
            outputs = {name: x * np.float32(factor ** (power - 1)) for name, x in right.items()}
            yield f"attention_factor {told}", outputs
        yield from mistaken(case.rotary_dim, case.rope_theta, scaling, inputs)
        for sentence, other in _others(scaling, case.rotary_dim):
            yield sentence, _of_axes(_right, truth, case, inputs, other)[""]


def _right(truth: Any, case: Any, inputs: Mapping[str, Array]) -> Iterator[tuple[str, Outputs]]:
    cos, sin = truth.table(tuple(inputs["positions"].tolist()), case.rotary_dim, case.rope_theta)
    yield "", {"cos": cos, "sin": sin}


def _of_axes(
    models: Models, truth: Any, case: Any, inputs: Mapping[str, Array], scaling: RopeScaling
) -> dict[str, Outputs]:
    """Models of a plain table, for scaled frequencies, with attention_factor."""
    numbers, plain = asked(truth, case, scaling)
    factor = rope_scaling.attention_factor(scaling)
    each = [dict(models(numbers, plain, one)) for one in by_axis(inputs)]
    right = [dict(_right(numbers, plain, one))[""] for one in by_axis(inputs)]

    def joined(sentence: str) -> Outputs:
        models = [one.get(sentence, known) for one, known in zip(each, right, strict=True)]
        found = {n: factor * chosen(scaling, [x[n] for x in models]) for n in ("cos", "sin")}
        return {name: x.astype(np.float32) for name, x in found.items()}

    return {sentence: joined(sentence) for sentence in dict.fromkeys(chain.from_iterable(each))}


def _others(scaling: RopeScaling, rotary_dim: int) -> Iterator[tuple[str, RopeScaling]]:
    """Scalings that a wrong builder may have taken instead."""
    columns = rotary_dim // 2
    if scaling.rope_type != "default":
        yield (
            "the scaling left out",
            RopeScaling(
                turning=columns,
                mrope_section=scaling.mrope_section,
                mrope_interleaved=scaling.mrope_interleaved,
            ),
        )
    if scaling.rope_type in ("dynamic", "longrope"):
        at = scaling.seq_len or 0
        for other in (at + 1, max(at - 1, 0), None, 2**20):
            yield f"the factors of seq_len {other}", replace(scaling, seq_len=other)
    if scaling.rope_type == "yarn":
        yield "truncate the other way", replace(scaling, truncate=not scaling.truncate)
    if scaling.rope_type == "proportional":
        yield "all columns turned", replace(scaling, turning=columns)
    if scaling.mrope_section:
        height, width = scaling.mrope_section[1:]
        other = not scaling.mrope_interleaved
        if not other or max(height, width) <= columns // 3:
            yield "sections the other way", replace(scaling, mrope_interleaved=other)
        yield "all columns by the first axis", replace(scaling, mrope_section=(columns, 0, 0))
