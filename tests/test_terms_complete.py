"""Every named term of every budget has a witness: a test that misses it once it is deleted.

Terms are found by asking every contract for budgets under every value that its stages know; a term
that WITNESS does not list fails here, and so does a witness that no longer exists.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tightrope.arithmetic import Arithmetic
from tightrope.contract import contract, names
from tightrope.oracles import attention_budget

HERE = Path(__file__).parent
# Their own tests come with them.
EXEMPT = ("pope_attention_backward", "attention_varlen_backward", "ring_attention_backward")
FORMAT = re.compile(r"\b(bfloat16|float16|float32|float64|tf32)\b")
NUMBER = re.compile(r"\b\d[\d.]*(e-?\d+)?\b(?= (ulp|rad))")
WORDS = (
    *("exact", "given", "input", "float64", "float32", "float16", "bfloat16", "tf32", "any"),
    *("none", "ieee", "scaled", "natural", "base2", "start", "end", "normalised", "unnormalised"),
    *("division", "direct", "once", "ring", "apart", "summed", "hopper_mma", "sequential"),
    *("key", "query", "query_angle", "pairs"),
)
NUMBERS = (0, 0.5, 2.0**-12, 1.5, 3.0, 16, False)
PLAIN = {"seqlen_q": 3, "seqlen_k": 5, "num_heads": 2, "num_kv_heads": 1, "dtype": "bfloat16"}
PACKED = {"seqlens_q": (3,), "seqlens_k": (5,), "num_heads": 2}
LOUD = {"softmax_scale": 4.0, "data": "outliers"}  # some weights are flushed
SCALINGS = "default linear ntk dynamic yarn longrope llama3 proportional"
SINK, SINGLE = {"sink": True}, {"sink": True, "dtype": "float32"}
FORMATS = ("float64", "float16", "bfloat16")
CASES = {
    "rope_table": [
        {"tokens": 3, "rotary_dim": 16, "start": 5, "rope_scaling": kind}
        for kind in SCALINGS.split()
    ],
    "pope_table": [{"tokens": 3, "rotary_dim": 8, "start": 5, "exponent_sign": s} for s in (1, -1)],
    "query_scale": [{"tokens": 3}],
    **{name: [{"dtype": d, "out_dtype": "float32"} for d in FORMATS]
       for name in ("rope", "rope_backward")},
    **{name: [{**PLAIN, **more} for more in (SINK, SINGLE, LOUD)]
       for name in ("attention", "rope_attention", "pope_attention")},
    **{name: [{**PACKED, **more} for more in (SINK, SINGLE, LOUD)]
       for name in ("attention_varlen", "attention_paged")},
    "attention_backward": [{**PLAIN, **more} for more in (LOUD, {"softcap": 5.0})],
    "ring_attention": [{**PLAIN, "ranks": 2}],
    "merge_attention": [{"splits": 3, "rows": 2, "num_heads": 2, "head_dim": 4}],
}  # fmt: skip


def told(term: str) -> str:
    """The name of a term without its format and numbers."""
    return NUMBER.sub("N", FORMAT.sub("FORMAT", term))


def arithmetics(stages):
    """The grant, and it with each stage at each value in turn."""
    yield Arithmetic().over(stages)
    for stage, usual in stages.items():
        values = WORDS if isinstance(usual, str) else NUMBERS
        yield from (Arithmetic(**{stage: value}).over(stages) for value in values)


def terms_of(name: str) -> set[tuple[str, str]]:
    """(output, term) of all budgets that a contract gives for its CASES."""
    spec, found = contract(name), set()
    for fields in CASES[name]:
        case = spec.case(**fields)
        inputs = spec.inputs(case)
        for arithmetic in arithmetics(spec.stages):
            try:
                budgets = spec.budget(case, inputs, arithmetic)
            except (ValueError, KeyError, TypeError):
                continue  # the stage does not know this value
            found |= {(out, told(term)) for out, budget in budgets.items() for term in budget.terms}
    return found


ROPE_TABLE = "test_rope_table_budget.py::test_deleting_a_term_is_noticed"
ATTENTION = "test_attention_terms.py::test_deleting_a_term_is_noticed"
BACKWARD = "test_attention_backward_terms.py::test_deleting_a_term_is_noticed"
MERGE, RING = "test_merge_budget.py::test_a_missing_term_is_noticed", "test_ring_budget.py::test_"
POPE_TABLE = "test_pope_table_terms.py::test_deleting_a_term_of"
SCALE = "test_query_scale_budget.py::test_without_its_term_the_budget_is_exceeded"
SHARED = "rope_attention", "pope_attention", "attention_varlen", "attention_paged"
FORWARD = {
    ("out", "exponentials"): "exponentials", ("out", "flush"): "flush",
    ("out", "P rounded to FORMAT"): "P rounded to bfloat16",
    ("out", "V truncated to FORMAT"): "V truncated to tf32",
    ("out", "accumulation"): "accumulation", ("out", "denominator"): "denominator",
    ("out", "division"): "division", ("out", "sink"): "sink",
    ("lse", "weights"): "weights", ("lse", "denominator"): "denominator",
    ("lse", "logarithm"): "logarithm", ("lse", "sum"): "sum",
}  # fmt: skip
OF_TABLES = {
    "position rounded to FORMAT": "position", "inv_freq rounded to FORMAT": "inv_freq",
    "exponent 2c/rotary_dim rounded to FORMAT": "exponent",
    "power within N ulp and reciprocal in FORMAT": "power", "angle rounded to FORMAT": "angle",
    "angle within N rad": "reduction", "cos, sin within N ulp": "function",
}  # fmt: skip
SCALED = {
    "scaled in FORMAT":
        "test_rope_scaling_budget.py::test_without_its_own_term_the_budget_is_exceeded[yarn]",
    "attention_factor rounded to FORMAT":
        "test_rope_scaling_budget.py::test_a_rounded_attention_factor_is_a_term_that_is_needed",
    "cos, sin within N ulp, rounded":
        "test_rope_table_terms.py::test_functions_rounded_before_attention_factor_need_their_term",
}  # fmt: skip
OF_ANGLES = {
    "position rounded to FORMAT": "_the_table_is_noticed[position rounded-1]",
    "angle rounded to FORMAT": "_the_table_is_noticed[angle rounded-1]",
    "angle within N rad": "_the_table_is_noticed[angle within-1]",
    "cos, sin within N ulp": "_the_table_is_noticed[cos, sin-1]",
}
OF_POWERS = {
    "exponent c/rotary_dim rounded to FORMAT": ("exponent", "exponent c/-more0"),
    "power within N ulp and reciprocal in FORMAT": ("power", "power within-more1"),
    "inv_freq rounded to FORMAT": ("inv_freq", "inv_freq rounded-None"),
}
POWERS = "test_pope_table_budget.py::test_deleting_a_term_of_the_angles_is_noticed"
OF_ROPE = {"cos and sin": "table-float16", "products": "products", "sum": "sum"}
OF_BACKWARD = {
    "dq": ("exponentials", "dP", "dS", "accumulation", "scale", "D", "lse", "softcap"),
    "dv": ("exponentials", "lse", "accumulation", "flush"),
}
OF_BACKWARD["dk"] = OF_BACKWARD["dq"]
OF_CASTS = {"dq": "dS", "dk": "dS", "dv": "P"}
OF_MERGES = {
    "out": ("weights", "flush", "sum", "denominator", "division"),
    "lse": ("weights", "denominator", "logarithm"),
}
OF_SCALES = {
    "attn_scale rounded to FORMAT": "attn_scale", "floor of a rounded quotient": "floor",
    "logarithm within N ulp of FORMAT": "logarithm", "product rounded to FORMAT": "product",
    "sum rounded to FORMAT": "sum",
}  # fmt: skip
# contract -> (output, term) -> the test that misses the term
WITNESS = {
    "attention": {(o, t): f"{ATTENTION}[{o}-{name}]" for (o, t), name in FORWARD.items()},
    "rope_table": {
        **{(o, t): f"{ROPE_TABLE}[{f}]" for o in ("cos", "sin") for t, f in OF_TABLES.items()},
        **{(o, t): node for o in ("cos", "sin") for t, node in SCALED.items()},
    },
    "pope_table": {
        **{(o, t): POPE_TABLE + n for o in ("cos", "sin") for t, n in OF_ANGLES.items()},
        **{(o, t): f"{POWERS}[{n}-1]" for o in ("cos", "sin") for t, (_, n) in OF_POWERS.items()},
        **{("inv_freq", t): f"{POPE_TABLE}_inv_freq_is_noticed[{f}-1]"
           for t, (f, _) in OF_POWERS.items()},
        ("inv_freq", "returned inv_freq rounded to FORMAT"):
            f"{POPE_TABLE}_inv_freq_is_noticed[returned-1]",
    },
    "query_scale": {("scale", t): f"{SCALE}[{name}]" for t, name in OF_SCALES.items()},
    **{
        name: {(o, f"{t} rounded to FORMAT"):
               f"test_rope_terms.py::test_deleting_a_term_is_noticed[{family}-{o}]"
               for o in outputs for t, family in OF_ROPE.items()}
        for name, outputs in (("rope", ("q", "k")), ("rope_backward", ("dq", "dk")))
    },
    "attention_backward": {
        **{(o, t): f"{BACKWARD}[{o}-{t}]" for o, terms in OF_BACKWARD.items() for t in terms},
        **{(o, f"{t} rounded to FORMAT"): f"{BACKWARD}[{o}-{t} rounded to bfloat16]"
           for o, t in OF_CASTS.items()},
        **{(o, "heads apart"): f"test_attention_backward_terms.py::test_gradients_of_heads_that_are"
           f"_stored_apart_need_their_term[{o}-{place}]" for place, o in ((1, "dk"), (2, "dv"))},
    },
    "merge_attention": {(o, t): f"{MERGE}[{o}-{t}]" for o, ts in OF_MERGES.items() for t in ts},
    "ring_attention": {
        **{("out", t): f"{RING}every_term_of_out_is_missed[{t}]"
           for t in ("partial states", "their lse", "merges", "states stored")},
        **{("lse", t): f"{RING}every_term_of_lse_is_missed[{t}]"
           for t in ("partial states", "merges")},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in names() if name not in EXEMPT])
def test_every_term_has_a_witness_and_every_witness_a_term(name):
    assert terms_of(name) == set(WITNESS.get(name, FORWARD))


def test_every_witness_is_a_test():
    nodes = {node for terms in WITNESS.values() for node in terms.values()}
    files = sorted({str(HERE / node.split("::")[0]) for node in nodes})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *files]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    collected = {line.rpartition("tests/")[2] for line in done.stdout.splitlines()}
    assert nodes <= collected


@pytest.mark.parametrize("name", SHARED)
def test_attentions_share_the_place_where_their_terms_are_named(name, monkeypatch):
    """So that a witness of one is a witness of all: what deletes a term, deletes it in each."""
    out_terms, lse_terms = attention_budget.out_terms, attention_budget.lse_terms

    def of_lse(*args):
        lse, bounds, own = lse_terms(*args)
        return lse, renamed(bounds), own

    monkeypatch.setattr(attention_budget, "out_terms", lambda *args: renamed(out_terms(*args)))
    monkeypatch.setattr(attention_budget, "lse_terms", of_lse)
    assert terms_of(name) == {(output, f"renamed {term}") for output, term in FORWARD}


def renamed(terms):
    return {f"renamed {name}": bound for name, bound in terms.items()}
