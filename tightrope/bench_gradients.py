"""`tightrope bench gradients`: backward passes of attention and PoPE attention, and their memory.

Each contender's forward pass has run before the clock starts, so that a time is that of the
gradients of q, k and v alone, with PoPE of delta too; all in turn, queued one by one. Copies of q,
k and v take turns. TFLOP/s counts the five products of attention's gradients for all, half of them
where causal, though PoPE's points have two coordinates a feature. Memory is the most that one call
allocates, gradients in it, also for growing lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from typing import Any

from tightrope import bench_inputs, bench_rows
from tightrope.bench import Rows, Wanted, median, show_all
from tightrope.bench_contenders import Contender
from tightrope.bench_inputs import Inputs, Shape
from tightrope.bench_rows import chosen, forget
from tightrope.implementation import bundled
from tightrope.timing import BATCH, BUFFERS, REPEATS, Call, prefill, reason

SHAPES = (Shape(4, 16, 4096, 64), Shape(4, 16, 4096, 128))
LENGTHS = tuple(Shape(1, 8, 2**n, 64) for n in range(11, 17))
PRODUCTS = 2.5  # times the forward pass's two
BASES = ("torch flash", "torch cudnn")
OURS = {
    "attention_backward triton": ("attention", "none"),
    "pope_attention_backward triton": ("pope_attention", "pope with delta"),
}
METHOD = {
    "times": "the backward pass alone, all contenders in turn, warm",
    "calls a time": BATCH,
    "repeats": REPEATS,
    "max error": "dq, dk and dv of the first head against float64, over the largest of each",
    "extra MiB": "peak allocated during one call, gradients in it",
}
Gradients = Callable[[], Any]
Make = Callable[[Inputs, int, Any], Gradients]


def of_ours(contract: str, inputs: Inputs, i: int, dout: Any) -> Gradients:
    """The bundled backward pass, after the bundled forward pass has run on buffers i."""
    given, angles = (inputs.q[i], inputs.k[i], inputs.v[i]), list[Any]()
    if contract == "pope_attention":
        angles = [inputs.inv_freq, inputs.delta, inputs.positions, inputs.positions]
    causal = inputs.shape.causal
    state = bundled(contract, "triton").fn(*given, *angles, causal=causal)
    differentiate = bundled(f"{contract}_backward", "triton").fn
    return partial(differentiate, dout, *given, *state, *angles, causal=causal)


def of_torch(backend: str, inputs: Inputs, i: int, dout: Any) -> Gradients:
    """Autograd's, of PyTorch's attention with one backend forced."""
    peer = import_module("tightrope.impls.peer_torch")
    given = (inputs.q[i], inputs.k[i], inputs.v[i])

    def forward(*leaves: Any) -> Any:
        with peer.forced(backend):
            return peer.scaled_dot_product_attention(*leaves, is_causal=inputs.shape.causal)

    return _recorded(forward, given, dout)


def of_pope_pytorch(inputs: Inputs, i: int, dout: Any) -> Gradients:
    """Autograd's, of PyPI's pope-pytorch, fused, in the layout that it takes."""
    peer = import_module("tightrope.impls.peer_pope_pytorch")
    if peer.MISSING:
        raise RuntimeError(peer.MISSING)

    def forward(q: Any, k: Any, v: Any, delta: Any) -> Any:
        given = (q, k, v, inputs.inv_freq, delta, inputs.positions)
        return peer.call(*given, heads_first=False, causal=inputs.shape.causal, fused=True)

    found = _recorded(
        forward, (*inputs.by_token[i], inputs.delta), dout.transpose(1, 2).contiguous()
    )

    def by_head() -> Any:
        *grads, ddelta = found()
        return (*(grad.transpose(1, 2) for grad in grads), ddelta)

    return by_head


def _recorded(forward: Callable[..., Any], given: tuple[Any, ...], dout: Any) -> Gradients:
    import torch

    leaves = [x.detach().requires_grad_() for x in given]
    with torch.enable_grad():
        out = forward(*leaves)
    return partial(torch.autograd.grad, out, leaves, dout, retain_graph=True)


def contenders() -> dict[str, tuple[Make, str]]:
    """Name -> how its gradients are made ready, and what positions do to q and k."""
    ours = {name: (partial(of_ours, op), position) for name, (op, position) in OURS.items()}
    torchs = {name: (partial(of_torch, name.split()[1]), "none") for name in BASES}
    return {**ours, **torchs, "pope-pytorch": (of_pope_pytorch, "pope with delta")}


def measure(wanted: Wanted) -> dict[str, Any]:
    """Rows a shape, memory a length, and ratios. Raises ValueError for a sweep, and where no
    shape's name starts with `only`."""
    if wanted.sweep:
        raise ValueError("bench gradients has no sweep")
    shapes = chosen((*SHAPES, *LENGTHS), wanted.only)
    found: dict[str, Any] = {"method": dict(METHOD), "shapes": {}, "memory": {}, "ratios": {}}
    for shape in shapes:
        if shape in SHAPES:
            rows = timed(shape)
            found["shapes"][shape.name] = {**asdict(shape), "rows": rows}
            found["ratios"] |= {f"{shape.name}: {n}": x for n, x in ratios(rows).items()}
        else:
            found["memory"][shape.name] = peaks(shape)
        wanted.keep(found)
    return found


def timed(shape: Shape) -> Rows:
    """Name -> times, TFLOP/s, error and memory; or an "error"."""
    import torch

    inputs = bench_inputs.draw(shape, BUFFERS)
    rows: Rows = {}
    calls: dict[str, Call] = {}
    dout = torch.randn_like(inputs.q[0])
    for name, (make, position) in contenders().items():
        try:
            made = [make(inputs, i, dout) for i in range(BUFFERS)]
            rows[name] = {
                "max error": error(inputs, position, dout, made[0]()),
                "extra MiB": peak(inputs, made[0]),
            }
            calls[name] = partial(_call, made)
        except Exception as why:  # absent, refused, or out of memory: a row says so
            rows[name] = {"error": reason(why)}
    for name, row in prefill(calls, int(PRODUCTS * shape.flop)).items():
        rows[name] = {"us": row["us"], "TFLOP/s": row["TB/s"], **rows[name]}
    calls.clear()
    forget()
    return rows


def _call(made: Sequence[Gradients], i: int) -> Any:
    return made[i]()


def peaks(shape: Shape) -> dict[str, Any]:
    """Name -> MiB at the peak of one call; or why there are none."""
    import torch

    inputs = bench_inputs.draw(shape, 1)
    found: dict[str, Any] = {"dq, dk and dv": 3 * shape.tensor_bytes / 2**20}
    dout = torch.randn_like(inputs.q[0])
    for name, (make, _) in contenders().items():
        try:
            found[name] = peak(inputs, make(inputs, 0, dout))
        except Exception as why:
            found[name] = reason(why)
        forget()
    return found


def peak(inputs: Inputs, gradients: Gradients) -> float:
    gradients()  # compiled, or tuned, before
    once = Contender("", inputs.shape, lambda *_: gradients())
    return bench_rows.memory(once, inputs) / 2**20


def error(inputs: Inputs, position: str, dout: Any, grads: Any) -> float:
    """Of dq, dk and dv of the first sequence's first head, each over its largest; NaN counts."""
    far = []
    for exact, grad in zip(exactly(inputs, position, dout), grads[:3], strict=True):
        off = (grad[0, :1].double() - exact).abs().max()
        far.append(float(off / exact.abs().max()))
    return float("nan") if any(x != x for x in far) else max(far)


def exactly(inputs: Inputs, position: str, dout: Any) -> tuple[Any, ...]:
    """dq, dk and dv of that head in float64, by autograd of the formula."""
    import torch

    first = replace(inputs, delta=inputs.delta[:1])
    leaves = [x[0][0, :1].double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    with torch.enable_grad():
        q, k = (
            first._features(position, x, key)
            for x, key in zip(leaves[:2], (False, True), strict=True)
        )
        scores = q @ k.mT * inputs.shape.head_dim**-0.5
        if inputs.shape.causal:
            hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        out = torch.softmax(scores, -1) @ leaves[2]
        found: tuple[Any, ...] = torch.autograd.grad(out, leaves, dout[0, :1].double())
    return found


def ratios(rows: Rows) -> dict[str, float]:
    """Ours over PyTorch's backends, and PoPE's over pope-pytorch's, by medians of this run."""
    pairs = [(name, base) for base in BASES for name in OURS]
    pairs.append(("pope_attention_backward triton", "pope-pytorch"))
    there = {name for name, row in rows.items() if "us" in row}
    return {
        f"{name} over {base}": median(rows, name) / median(rows, base)
        for name, base in pairs if {name, base} <= there
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    """Print a table a shape, one of memory, how it was counted, and the ratios."""
    tables = [(name, here["rows"]) for name, here in found["shapes"].items()]
    tables.append(("MiB at the peak of a call", found["memory"]))
    lines = [f"{what}: {how}" for what, how in found["method"].items()]
    show_all(tables, lines, found["ratios"])
