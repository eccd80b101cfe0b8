"""Keys times cosine and sine in Gluon, for the producing warps of a Hopper kernel.

A pair of float16 is expanded by packed instructions, which no operation of Gluon writes: the
"half" form of `tightrope.softplus`, operation by operation, and its promise. Issue slots are what
that kernel is short of: a pair takes 16 instructions here, and about 30 in float32.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tightrope.softplus import softplus

# ln(1 + u)/u for u in [0, 1], of degree 3, ascending, as float16: 1, -0.48999, 0.26123, -0.078491.
COEFFICIENTS = (0x3C00, 0xB7D7, 0x342E, 0xAD06)
_C0, _C1, _C2, _C3 = (f"0x{c:04X}{c:04X}" for c in COEFFICIENTS)
# $2, $3, $4: two keys, cosines, sines. 0fBFB8AA3B is -log2(e). The argument of the exponential is
# float32: rounded to 11 bits it would cost the tail, x << 0, far more than the polynomial does.
PAIR = gl.constexpr(
    f"""{{
    .reg .b16 low, high;
    .reg .f32 a, b;
    .reg .b32 u, p, m, h;
    mov.b32 {{low, high}}, $2;
    cvt.f32.f16 a, low;
    cvt.f32.f16 b, high;
    abs.f32 a, a;
    abs.f32 b, b;
    mul.rn.f32 a, a, 0fBFB8AA3B;
    mul.rn.f32 b, b, 0fBFB8AA3B;
    ex2.approx.ftz.f32 a, a;
    ex2.approx.ftz.f32 b, b;
    cvt.rn.f16x2.f32 u, b, a;
    mov.b32 p, {_C3};
    mov.b32 h, {_C2};
    fma.rn.f16x2 p, u, p, h;
    mov.b32 h, {_C1};
    fma.rn.f16x2 p, p, u, h;
    mov.b32 h, {_C0};
    fma.rn.f16x2 p, p, u, h;
    mov.b32 h, 0;
    max.NaN.f16x2 m, $2, h;
    fma.rn.f16x2 p, p, u, m;
    mul.rn.f16x2 $0, p, $3;
    mul.rn.f16x2 $1, p, $4;
    }}"""
)


@gluon.jit
def expanded(k, cos, sin, HALF: gl.constexpr):
    """softplus(k) cos and softplus(k) sin in k's dtype, rounded to it once; cos and sin float16.

    HALF: softplus of form "half", float16 only; else "short".
    """
    if HALF:
        x, y = gl.inline_asm_elementwise(
            PAIR, "=r,=r,r,r,r", [k, cos, sin], dtype=(gl.float16, gl.float16), is_pure=True, pack=2
        )
    else:
        size = softplus(k, "short")
        x = (size * cos.to(gl.float32)).to(k.dtype)
        y = (size * sin.to(gl.float32)).to(k.dtype)
    return x, y
