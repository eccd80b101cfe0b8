"""Other calls of attention's backward pass that kernels answer instead of the one they got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.formats import Array
from tightrope.oracles.attention_backward_inputs import stated
from tightrope.oracles.attention_backward_problem import Backward

if TYPE_CHECKING:
    from tightrope.oracles.attention_backward_cases import AttentionBackwardCase

Given = Mapping[str, Array]


def of_calls(
    case: AttentionBackwardCase, inputs: Given, b: Backward
) -> Iterator[tuple[str, Backward, Backward]]:
    """(what is computed instead, the call that dq is of, the call that dk and dv are of)."""
    yield from _alone(case, inputs, b)
    yield from _of_passes(case, inputs)


def _alone(
    case: AttentionBackwardCase, inputs: Given, b: Backward
) -> Iterator[tuple[str, Backward, Backward]]:
    """Other calls in both passes, and in one of them."""
    for sentence, other in chain(_of_masks(case, inputs), _of_others(case, b)):
        yield sentence, other, other
        yield f"{sentence} (in dq alone)", other, b
        yield f"{sentence} (in dk and dv alone)", b, other


def _of_passes(
    case: AttentionBackwardCase, inputs: Given
) -> Iterator[tuple[str, Backward, Backward]]:
    """Mistakes in what either pass sees of the other's tiles: its edges are each other's mirror."""
    left, right = case.window_left, case.window_right
    if case.causal:
        right = 0 if right is None else min(right, 0)

    def under(left: int | None, right: int | None) -> Backward:
        sides = {"causal": False, "window_left": left, "window_right": right}
        return stated(replace(case, **sides), inputs)  # type: ignore[arg-type]

    def step(reach: int | None, by: int) -> int | None:
        return None if reach is None else reach + by

    for by, told in ((-1, "less"), (1, "more")):
        yield (
            f"one {told} after the last key, or row, that is seen",
            under(left, step(right, by)), under(step(left, by), right),
        )  # fmt: skip
        yield (
            f"one {told} before the first key, or row, that is seen",
            under(step(left, by), right), under(left, step(right, by)),
        )  # fmt: skip
    yield (
        "window_left and window_right exchanged in dk and dv",
        under(left, right),
        under(right, left),
    )


def _of_others(case: AttentionBackwardCase, b: Backward) -> Iterator[tuple[str, Backward]]:
    """Other scales; keys, values and dout of other heads."""
    f, width, head = b.forward, case.head_dim, np.arange(len(b.dout))
    for told, scale in (
        ("softmax_scale ignored for head_dim**-0.5", width**-0.5),
        ("the scale of head_dim_v", case.head_dim_v**-0.5),
        ("the scale of the padded head_dim", (1 << (width - 1).bit_length()) ** -0.5),
        ("softmax_scale 1 throughout", 1.0),
    ):
        yield told, replace(b, forward=replace(f, softmax_scale=scale))
    first = head // b.group * b.group
    if b.group > 1:
        own = (b.dout * b.out).sum(-1, keepdims=True)
        along = b.dout / np.maximum((b.dout**2).sum(-1, keepdims=True), 1e-300)
        moved = (own - own[first]) * along  # which changes dout . out alone
        yield "rowsum(dout out) of the group's first head", replace(b, out=b.out - moved)
        every = replace(f, q=f.q[first], visible=f.visible[first])
        alike = replace(b, forward=every, dout=b.dout[first], out=b.out[first], lse=b.lse[first])
        yield "the group's first head taken for each of its heads", alike
    if len(head) > 1:
        last = np.roll(head, 1)
        yield "k and v of the head before", replace(b, forward=replace(f, k=f.k[last], v=f.v[last]))


def _of_masks(case: AttentionBackwardCase, inputs: Given) -> Iterator[tuple[str, Backward]]:
    """Another mask than the forward pass had: the given lse and out stay."""
    plain = {name: x for name, x in inputs.items() if name != "q_offset"}

    def under(given: Given, **fields: Any) -> Backward:
        return stated(replace(case, **fields), given)

    def moved(change: Callable[[Any], Any]) -> Backward:
        given = {n: change(x) if n == "q_offset" else x for n, x in inputs.items()}
        return under(given, q_offset=change(case.q_offset))

    if case.causal:
        yield "no causal mask", under(inputs, causal=False)
    for side in ("window_left", "window_right"):
        reach = getattr(case, side)
        if reach is not None:
            yield f"{side} ignored", under(inputs, **{side: None})
            for step, word in ((1, "more"), (-1, "less")):
                yield f"{side} one {word}", under(inputs, **{side: reach + step})
    for offset, name in ((0, "top-left"), (case.seqlen_k - case.seqlen_q, "bottom-right")):
        yield (
            f"the mask aligned {name} (q_offset {offset})",
            under(plain, offsets="int", q_offset=offset),
        )
    yield "q_offset one more", moved(lambda x: x + 1)
    yield "q_offset one less", moved(lambda x: x - 1)
    yield "the opposite q_offset", moved(lambda x: -x)
    if "q_offset" in inputs and case.batch > 1:
        first = int(inputs["q_offset"][0])
        same = under(plain, offsets="int", q_offset=first)
        yield "the first sequence's q_offset for all", same
