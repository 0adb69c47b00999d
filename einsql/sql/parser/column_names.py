"""Names of columns without an alias: the expression's text, as in DuckDB.

`spellings` adds what sqlglot's trees do not keep. Of DuckDB's 500 keywords only a few are quoted.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from einsql.core.quoting import in_quotes, literal
from einsql.sql.parser.spellings import NEGATED, PLUS, SPELLING
from einsql.sql.parser.sql_text import as_sql

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "//", exp.Mod: "%",
    exp.Pow: "^", exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">",
    exp.GTE: ">=", exp.BitwiseAnd: "&", exp.BitwiseOr: "|",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM",
}  # fmt: skip
_TYPES = {"INT": "INTEGER", "SMALLINT": "SMALLINT", "INT128": "HUGEINT", "FLOAT": "FLOAT"}
_QUOTED = {"range", "add", "if", "nullif", "mode", "first", "last"}
"""Keywords of DuckDB among the names of einsql's functions; they are quoted."""


def column_name(node: exp.Expr) -> str:
    """The name of a SELECT item without an alias, as DuckDB writes it."""
    node = _bare(node)
    is_name = isinstance(node, exp.Column) and PLUS not in node.meta
    return node.name if is_name else _text(node)


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren) and PLUS not in node.meta:
        node = node.this
    return node


def _text(node: exp.Expr) -> str:
    text = _unsigned(node)
    return f"(+({text}))" if PLUS in node.meta else text


def _unsigned(node: exp.Expr) -> str:
    written = node.meta.get("name")
    if isinstance(node, exp.Binary) and type(node) in _OPERATORS and written is None:
        operator = node.meta.get(SPELLING, _OPERATORS[type(node)])
        return f"({_text(node.this)} {operator} {_text(node.expression)})"
    if isinstance(node, exp.Abs) and SPELLING in node.meta:
        return f"(@({_text(node.this)}))"
    printer = _PRINTERS.get(type(node))
    if printer is not None:
        return printer(node)
    if isinstance(node, exp.Anonymous):
        return _call(str(node.this), node.expressions)
    if written is not None:
        return _call(str(written), _arguments(node))
    if isinstance(node, exp.Func):
        return _call(node.sql_name(), _arguments(node))
    return as_sql(node, normalize_functions="lower")


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    arguments: list[exp.Expr] = []
    for arg in type(node).arg_types:
        value = node.args.get(arg)
        children = value if isinstance(value, list) else [value]
        arguments += [a for a in children if isinstance(a, exp.Expr)]
    return arguments


def _call(name: str, args: list[exp.Expr]) -> str:
    return f"{_identifier(name.lower())}({', '.join(map(_text, args))})"


def _identifier(name: str, quoted: bool = False) -> str:
    keyword = name.lower() in _QUOTED or (quoted and name.upper() in DuckDB.Tokenizer.KEYWORDS)
    plain = name.isascii() and name.isidentifier() and not keyword
    return name if plain else in_quotes(name)


def _column(node: exp.Expr) -> str:
    parts = [node.args.get(a) for a in ("catalog", "db", "table", "this")]
    return ".".join(_identifier(p.name, bool(p.args.get("quoted"))) for p in parts if p is not None)


def _negated(node: exp.Expr) -> str:
    text = _text(node.this)
    number = _bare(node.this)
    if isinstance(number, exp.Neg):
        number = _bare(number.this)
    if isinstance(number, exp.Literal) and not number.is_string:
        return text[1:] if text.startswith("-") else f"-{text}"
    return f"(-({text}))"


def _conjunction(node: exp.Expr) -> str:
    """AND or OR of any number of conditions; parentheses between equal operators are dropped."""
    terms: list[exp.Expr] = []
    stack = [node]
    while stack:
        term = _bare(stack.pop())
        if type(term) is type(node):
            stack += [term.expression, term.this]
        else:
            terms.append(term)
    return "(" + f" {node.key.upper()} ".join(map(_text, terms)) + ")"


def _not(node: exp.Expr) -> str:
    if isinstance(node.this, exp.Is) and NEGATED not in node.meta:
        return _is(node.this, negated=True)
    return f"(NOT {_text(node.this)})"


def _is(node: exp.Expr, negated: bool = False) -> str:
    value = _text(node.this)
    if isinstance(node.expression, exp.Null):
        return f"({value} IS {'NOT ' if negated else ''}NULL)"
    word = "" if negated else "NOT "
    return f"(CAST({value} AS BOOLEAN) IS {word}DISTINCT FROM {_text(node.expression)})"


def _case(node: exp.Expr) -> str:
    text = "CASE "
    for branch in node.args["ifs"]:
        test = _text(branch.this)
        if node.this is not None:
            test = f"({_text(node.this)} = {test})"
        text += f" WHEN ({test}) THEN ({_text(branch.args['true'])})"
    default = node.args.get("default")
    return f"{text} ELSE {'NULL' if default is None else _text(default)} END"


def _cast(node: exp.Expr) -> str:
    to = node.args["to"]
    kind = as_sql(to).upper()
    if not to.expressions and isinstance(to.this, exp.DataType.Type):
        kind = to.meta.get(SPELLING) or _TYPES.get(to.this.value, kind)
    return f"{'TRY_' * isinstance(node, exp.TryCast)}CAST({_text(node.this)} AS {kind})"


def _log(node: exp.Expr) -> str:
    """LOG; sqlglot stores LOG2(x) and LOG10(x) with their bases."""
    written = str(node.meta.get("name", "log")).lower()
    args = [node.this] if node.expression is None else [node.this, node.expression]
    return _call(written, args if written == "log" else args[-1:])


def _count(node: exp.Expr) -> str:
    if isinstance(node.this, exp.Star | None):
        return "count_star()"
    if isinstance(node.this, exp.Column) and isinstance(node.this.this, exp.Star):
        return f"count({as_sql(node.this)})"
    return _call("count", [node.this])


_QUANTILES: dict[type[exp.Expr], str] = {
    exp.PercentileCont: "quantile_cont",
    exp.PercentileDisc: "quantile_disc",
}


def _within_group(node: exp.Expr) -> str:
    call, order = node.this, as_sql(node.expression).strip()
    if call.this is None:
        return f"{_text(call)} WITHIN GROUP ( {order})"
    return f"{_QUANTILES[type(call)]}({_text(call.this)} {order})"


def _window(node: exp.Expr) -> str:
    parts = ", ".join(map(_text, node.args.get("partition_by") or []))
    call = _text(node.this).replace("count_star()", "count()", 1)
    order, frame = node.args.get("order"), node.args.get("spec")
    clauses = [f"PARTITION BY {parts}"] if parts else []
    if order is not None:
        clauses.append(f"ORDER BY {', '.join(map(_ordered, order.expressions))}")
    if frame is not None:
        clauses += _frame(frame)
    return f"{call} OVER ({' '.join(clauses)})"


def _ordered(node: exp.Expr) -> str:
    """An item of ORDER BY; sqlglot does not keep whether ASC and NULLS LAST are written."""
    words = " DESC" * bool(node.args.get("desc")) + " NULLS FIRST" * bool(
        node.args.get("nulls_first")
    )
    return _text(node.this) + words


def _frame(frame: exp.Expr) -> list[str]:
    """The clause of a frame; DuckDB leaves out the default one."""

    def end(name: str, default: str) -> str:
        bound = frame.args.get(name) or default
        text = _text(bound) if isinstance(bound, exp.Expr) else str(bound)
        return f"{text} {frame.args.get(f'{name}_side') or ''}".strip()

    ends = f"{end('start', 'UNBOUNDED')} AND {end('end', 'CURRENT ROW')}"
    written = f"{frame.args['kind']} BETWEEN {ends}"
    default = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    return [] if written == default else [written]


def _subquery(node: exp.Expr) -> str:
    select = node.this
    known = {"expressions", "from_", "where", "group"}
    if not isinstance(select, exp.Select) or {a for a, v in select.args.items() if v} - known:
        return as_sql(node, normalize_functions="lower")
    text = "SELECT " + ", ".join(map(_text, select.expressions))
    where, group = select.args.get("where"), select.args.get("group")
    if select.args.get("from_") is not None:
        text += " " + as_sql(select.args["from_"])
    if where is not None:
        text += f" WHERE {_text(where.this)}"
    if group is not None:
        keys = ["ALL"] if group.args.get("all") else map(_text, group.expressions)
        text += f" GROUP BY {', '.join(keys)}"
    return f"({text})"


_PRINTERS: dict[type[exp.Expr], Callable[[exp.Expr], str]] = {
    exp.Paren: lambda node: _text(node.this),
    exp.Column: _column,
    exp.Literal: lambda node: (
        literal(node.name) if node.args["is_string"] else str(node.meta.get(SPELLING, node.name))
    ),
    exp.Boolean: lambda node: "true" if node.this else "false",
    exp.Null: lambda node: "NULL",
    exp.Neg: _negated,
    exp.And: _conjunction,
    exp.Or: _conjunction,
    exp.Not: _not,
    exp.Is: _is,
    exp.Between: lambda node: (
        f"({_text(node.this)} BETWEEN {_text(node.args['low'])} AND {_text(node.args['high'])})"
    ),
    exp.In: lambda node: f"({_text(node.this)} IN ({', '.join(map(_text, node.expressions))}))",
    exp.Case: _case,
    exp.If: lambda node: _call(
        "if", [node.args[a] for a in ("this", "true", "false") if node.args.get(a) is not None]
    ),
    exp.Array: lambda node: _call("list_value", node.expressions),
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Log: _log,
    exp.Count: _count,
    exp.Distinct: lambda node: f"DISTINCT {', '.join(map(_text, node.expressions))}",
    exp.IgnoreNulls: lambda node: _text(node.this),
    exp.WithinGroup: _within_group,
    **{kind: lambda node: _call(_QUANTILES[type(node)], _arguments(node)) for kind in _QUANTILES},
    exp.Filter: lambda node: f"{_text(node.this)} FILTER (WHERE {_text(node.expression.this)})",
    exp.Window: _window,
    exp.Coalesce: lambda node: f"COALESCE({', '.join(map(_text, (node.this, *node.expressions)))})",
    exp.Subquery: _subquery,
}
