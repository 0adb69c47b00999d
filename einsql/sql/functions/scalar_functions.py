"""Scalar functions, with their syntax nodes and names."""

from __future__ import annotations

from sqlglot import exp

FUNCTION_OF_NODE: dict[type[exp.Expr], str] = {
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.IntDiv: "idiv",
    exp.Mod: "mod", exp.Pow: "pow", exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le",
    exp.Atan2: "atan2", exp.BitwiseAnd: "bitand", exp.BitwiseOr: "bitor", exp.BitwiseXor: "xor",
    exp.Abs: "abs", exp.Sign: "sign", exp.Floor: "floor", exp.Ceil: "ceil", exp.Trunc: "trunc",
    exp.Exp: "exp", exp.Ln: "ln", exp.Sqrt: "sqrt", exp.Cbrt: "cbrt", exp.Sin: "sin",
    exp.Cos: "cos", exp.Tan: "tan", exp.Asin: "asin", exp.Acos: "acos", exp.Atan: "atan",
    exp.Sinh: "sinh", exp.Cosh: "cosh", exp.Tanh: "tanh", exp.Asinh: "asinh",
    exp.Acosh: "acosh", exp.Atanh: "atanh", exp.Degrees: "degrees", exp.Radians: "radians",
    exp.IsNan: "isnan", exp.IsInf: "isinf",
}  # fmt: skip
"""Syntax nodes with an equivalent function of the algebra over the same arguments."""

NAMED: dict[str, tuple[str, int]] = {
    "erf": ("erf", 1),
    "lgamma": ("lgamma", 1),
    "isfinite": ("isfinite", 1),
    "add": ("add", 2),
    "subtract": ("sub", 2),
    "multiply": ("mul", 2),
    "divide": ("idiv", 2),
    "fmod": ("fmod", 2),
    "mod": ("mod", 2),
    "log2": ("log2", 1),
    "ceiling": ("ceil", 1),
}
"""Functions without a syntax node in sqlglot: their function in the algebra, and their arity."""

SCALAR_MACROS = ("adam", "gelu", "relu", "silu")
"""Built-in macros that are expressions."""
