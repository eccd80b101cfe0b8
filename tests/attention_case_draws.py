"""Drawing cases of the attention contracts in tests, as a law would: quick, derandomized, small."""

from __future__ import annotations

from functools import cache

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tightrope import Arithmetic
from tightrope.contract import contract

SEQUENCES = ("attention_varlen", "attention_paged")
DENSE = ("attention", "rope_attention", "pope_attention")
NAMES = (*DENSE, *SEQUENCES, "merge_attention")
QUICK = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
)


@cache
def drawn(name, count=60, where=(), size="small", **limited):
    """`count` cases of a contract."""
    spec, found = contract(name), []

    @settings(QUICK, max_examples=count)
    @given(spec.cases(spec.limits({"size": (size,), **limited}, where)))
    def collect(case):
        found.append(case)

    collect()
    return tuple(found)


def useless(name, count):
    """Of `count` cases: with a null model within a stranger's budgets, and with null models."""
    spec, inside, told = contract(name), 0, 0
    for case in drawn(name, count):
        inputs = spec.inputs(case)
        spent = spec.budget(case, inputs, Arithmetic().over(spec.stages))
        models = spec.nulls(case, inputs).values()
        told += bool(models)
        inside += any(all(spent[n].accepts(y) for n, y in model.items()) for model in models)
    return inside, told


MULTIPLES = range(64, 1 << 21, 64)
# (relations, limits): what a contract lacks, or what contradicts it, is left to the test
NARROW = (
    ((), {"seqlen_q": MULTIPLES, "seqlen_k": MULTIPLES}),
    ((), {"seqlen_q": range(128, 2049, 128), "seqlen_k": range(128, 2049, 128)}),
    ((), {"seqlen_q": (0,)}),
    ((), {"seqlen_k": (0,), "empty_rows": (True,)}),
    ((), {"seqlen_q": (100,), "seqlen_k": (20,)}),
    ((), {"q_offset": (0, 5), "empty_rows": (False,)}),
    ((), {"q_offset": range(1000, 2000, 10)}),
    ((), {"batch": (4, 8), "num_heads": (8,), "num_kv_heads": (2,)}),
    ((), {"sequences": (3,), "seqlen_q": range(5, 100, 5), "seqlen_k": (0, 10, 300)}),
    ((), {"rows": MULTIPLES, "splits": (5,), "head_dim": range(8, 257, 8)}),
    ((), {"page_size": range(48, 257, 48), "seqlen_q": (1,)}),
    (("square",), {"seqlen_q": (64, 128), "seqlen_k": (64, 128)}),
    (("square",), {"seqlen_q": range(1, 20), "seqlen_k": range(16, 33)}),
    (("square", "without_lse"), {}),
    (("square", "no_empty_member"), {"seqlen_q": (0, 6), "seqlen_k": range(0, 100, 2)}),
    (("no_empty_member",), {"seqlen_q": range(0, 100, 3), "empty_rows": (False,)}),
    (("decode",), {"q_offset": (32,), "seqlen_k": (33, 40)}),
    (("bottom_right",), {"q_offset": range(0, 1000)}),
    (("bottom_right",), {"q_offset": (7,), "seqlen_q": range(8, 1 << 21, 8)}),
    (
        ("no_offset",),
        {
            "seqlen_q": (40,),
            "seqlen_k": range(24, 1 << 21),
            "window_left": (16,),
            "empty_rows": (False,),
        },
    ),
)
CONTRADICTIONS = (
    (("square",), {"seqlen_q": range(1, 9), "seqlen_k": range(16, 33)}),
    (("square",), {"q_offset": (5,)}),
    (("decode",), {"q_offset": (0,), "seqlen_k": (33,)}),
    (("bottom_right",), {"q_offset": (3,), "seqlen_q": (8,), "seqlen_k": (8,)}),
    ((), {"seqlen_q": (1,), "seqlen_k": (0,), "empty_rows": (False,)}),
)


def known(name, narrow):
    """Those of a list of (relations, limits) that a contract knows all names of."""
    spec = contract(name)
    return [
        (where, limited) for where, limited in narrow
        if set(where) <= set(spec.relations) and set(limited) <= set(spec.domain)
    ]  # fmt: skip


@st.composite
def mixtures(draw, call, kinds):
    """Calls with every field of `kinds` drawn from its values, and heads in groups or not."""
    fields = {name: draw(st.sampled_from(values)) for name, values in kinds.items()}
    num_heads, num_kv_heads = draw(st.sampled_from([(1, 1), (2, 1), (4, 2)]))
    return call(num_heads=num_heads, num_kv_heads=num_kv_heads, empty_rows=True, **fields)
