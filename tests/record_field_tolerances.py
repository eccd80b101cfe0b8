"""Record what the field's tolerances say of wrong kernels: `python tests/record_field_tolerances.py
FILE`.

The wrong kernels of tests/wrong_*.py and their right twins, on inputs as projects' own tests have
them: standard normal, contiguous, short, for three seeds. A wrong kernel counts as accepted if no
seed rejects it. Beside it what `test_matches_oracle` says on the very same inputs, many of which
cannot show the mistake; on what it draws itself, it or another law rejects every one of them
(tests/test_wrong_*.py).
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from plain_references import plain, tensors

from tightrope.blackbox import write_atomically
from tightrope.budget import Violation
from tightrope.device import _keywords, current, prepare, to_numpy
from tightrope.environment import environment
from tightrope.formats import stored, widen
from tightrope.implementation import Implementation, registered
from tightrope.subjects import load
from tightrope.verdict import judge

HERE = Path(__file__).parent
SEEDS = 3
GROUPS = {
    "rope": ("wrong_rope.py",),
    "attention": ("wrong_attention.py", "wrong_attention_arithmetic.py"),
    "pope_attention": ("wrong_pope.py", "wrong_pope_parts.py"),
}
HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
CALL = {**HEADS, "seqlen_q": 64, "seqlen_k": 64, "head_dim_v": 64, "causal": True}
ORDINARY: dict[str, dict[str, Any]] = {
    "rope": {**HEADS, "tokens": 64, "rotary_dim": 64, "table": "trigonometric", "table_rows": 128},
    "attention": CALL,
    "pope_attention": {**CALL, "rotary_dim": 64, "delta": "kv_heads"},
}
# absolute and relative error, |a - b| <= absolute + relative |b|
CHECKLIST = (1e-2, 1e-2)  # BackendBench's, and many a checklist's
TORCH = {  # torch.testing's for each dtype
    "bfloat16": (1e-5, 1.6e-2), "float16": (1e-5, 1e-3), "float32": (1e-5, 1.3e-6),
}  # fmt: skip
OURS = "test_matches_oracle on the same inputs"
RATIO = 0.02  # of root mean squares, as flash-linear-attention measures


def near(out: Any, ref: Any, absolute: float, relative: float) -> bool:
    with np.errstate(invalid="ignore"):
        return bool((np.abs(out - ref) <= absolute + relative * np.abs(ref)).all())


def ratio(out: Any, ref: Any) -> float:
    size = float(np.sqrt(np.mean(ref**2)))
    return float(np.sqrt(np.mean((out - ref) ** 2))) / max(size, 1e-30)


def factor_2(out: Any, ref: Any, low: Any, dtype: str) -> bool:
    """FlashAttention-3's: twice the error of a low-precision reference, and twice what adding and
    taking away 0.3 costs.
    """
    back = widen(stored(widen(stored(ref + 0.3, dtype)) - 0.3, dtype))
    allowed = 2 * np.abs(low - ref).max() + 2 * np.abs(back - ref).max()
    return bool(np.abs(out - ref).max() <= allowed)


def opinions(out: Any, ref: Any, low: Any, dtype: str) -> dict[str, bool]:
    """Who accepts one output; a NaN is accepted by nobody."""
    whole = bool(np.isfinite(out).all())
    return {
        "absolute and relative 1e-2": whole and near(out, ref, *CHECKLIST),
        "torch.testing's defaults": whole and near(out, ref, *TORCH[dtype]),
        "FlashAttention's factor 2": whole and factor_2(out, ref, low, dtype),
        "ratio of RMS 2 %": whole and ratio(out, ref) < RATIO,
    }


def case_for(impl: Implementation, dtype: str, seed: int) -> Any:
    """An ordinary case, or the nearest that the kernel's limits allow."""
    spec, limits = impl.contract, impl.allowed()
    fields = {**ORDINARY[spec.name], "dtype": dtype, "seed": seed}
    for name in limits.given:
        usual = fields.get(name, getattr(spec.case(), name))
        if not limits.allows(name, usual):
            fields[name] = next(iter(limits.values(name)))
    return spec.case(**fields)


def called(impl: Implementation, case: Any, inputs: Any) -> dict[str, Any]:
    """Outputs of a call, as float64; nobody watches the memory."""
    given = tensors(impl.contract, case, inputs)
    by_place, named = impl.contract.arguments(given)
    options = _keywords(impl.fn, impl.contract.options(case))
    returned = impl.fn(*by_place, **options, **named)
    found = zip(impl.outputs, returned, strict=True)
    return {name: widen(to_numpy(x.detach().contiguous())) for name, x in found}


def ours(impl: Implementation, case: Any, inputs: Any) -> bool:
    """Whether `test_matches_oracle` holds on this case."""
    spec, budgets = impl.contract, impl.budgets(case, inputs, current())
    try:
        found = impl(case, inputs)
    except Violation:
        return False
    return all(
        judge(n, found[n], budgets[n], lambda at, n=n: spec.exact(case, inputs, n, at)).ok
        for n in impl.outputs
    )


def asked(impl: Implementation, dtype: str, seed: int) -> dict[str, bool]:
    """Who accepts the outputs of one call."""
    case, spec = case_for(impl, dtype, seed), impl.contract
    inputs = spec.inputs(case)
    truth, low = spec.oracle(case, inputs), plain(spec, case, inputs)
    told = {OURS: ours(impl, case, inputs)}
    found, kept = called(impl, case, inputs), dtype if case.out_dtype == "input" else case.out_dtype
    for name in low:
        ref = widen(stored(truth[name], kept))
        for who, accepted in opinions(found[name], ref, low[name], kept).items():
            told[who] = told.get(who, True) and accepted
    return told


def main(path: str) -> None:
    prepare("cpu")
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "environment": environment(),
        "seeds": SEEDS, "inputs": ORDINARY, "rejected": {}, "accepted kernels": {},
        "right twins rejected": {},
    }  # fmt: skip
    for group, files in GROUPS.items():
        impls = [i for f in files for i in registered(load(str(HERE / f)).__name__)]
        asked_of = [(i, dtype) for i in impls for dtype in i.allowed().values("dtype")]
        verdicts: dict[str, dict[str, bool]] = {}
        for impl, dtype in asked_of:
            each = [asked(impl, dtype, seed) for seed in range(SEEDS)]
            verdicts[f"{impl.name} {dtype}"] = {w: all(one[w] for one in each) for w in each[0]}
        right = {name for name in verdicts if name.startswith("right")}
        wrong = verdicts.keys() - right
        for who in next(iter(verdicts.values())):
            accepted = sorted(name for name in wrong if verdicts[name][who])
            told = f"{len(wrong) - len(accepted)} of {len(wrong)}"
            record["rejected"].setdefault(who, {})[group] = told
            record["accepted kernels"].setdefault(who, {})[group] = accepted
            refused = sorted(name for name in right if not verdicts[name][who])
            record["right twins rejected"].setdefault(who, {})[group] = refused
            print(group, who, told, refused, flush=True)
        write_atomically(Path(path), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
