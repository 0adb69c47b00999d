"""Arguments that the expansion of a macro reads in several places, as one syntax tree.

A copy in each place would double the statement with each level of nested macros: 2ⁿ copies for n
levels of `f(x) := x + x`. A place has instead a call that users cannot write, with the argument
beside its expressions. The binder binds the argument once (`binder/dependent_values.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.sql.functions.aggregate_functions import AGGREGATES
from einsql.sql.macros.macros import Macro
from einsql.sql.parser.aggregate_law import law_of

_LEAVES = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Parameter, exp.Placeholder)
_IMPURE: tuple[type[exp.Expr], ...] = (
    *(exp.Query, exp.Window, exp.UDTF, exp.Explode, exp.Array, exp.Bracket, exp.AggFunc),
    *(node for node in AGGREGATES if not isinstance(node, str)),
)


@dataclass(frozen=True, slots=True, eq=False)
class SharedArgument:
    """An argument that several places of a statement read.

    Attributes:
        number: Its number in the SELECT.
        tree: The argument in parentheses; its macros are expanded in place.
    """

    number: int
    tree: exp.Paren


def shared_of(node: object) -> SharedArgument | None:
    """The argument that a place reads; None for any other node."""
    shared = node.args.get("shared") if isinstance(node, exp.Anonymous) else None
    return shared if isinstance(shared, SharedArgument) else None


@dataclass
class SharedArguments:
    """The shared arguments of one SELECT.

    Attributes:
        find: Function that returns the macro of a name, or None.
        places: A place of each argument, by the argument.
        arguments: The arguments in the order in which they were found.
        pure: Whether a macro computes its value from its arguments alone, by its name.
    """

    find: Callable[[str], Macro | None]
    places: dict[exp.Expr, exp.Anonymous] = field(default_factory=dict)
    arguments: list[SharedArgument] = field(default_factory=list)
    pure: dict[str, bool] = field(default_factory=dict)

    def place(self, argument: exp.Expr) -> exp.Expr | None:
        """The node that a place of an argument gets; None for an argument that is copied.

        The columns of the argument are the expressions of the node. So a search for columns finds
        them.
        """
        if isinstance(argument, _LEAVES) or shared_of(argument) or not self._is_pure(argument):
            return None
        place = self.places.get(argument)
        if place is None:
            shared = SharedArgument(len(self.arguments), exp.Paren(this=argument))
            self.arguments.append(shared)
            columns = dict.fromkeys(argument.find_all(exp.Column))
            place = exp.Anonymous(this="shared", expressions=[c.copy() for c in columns])
            place.args["shared"] = shared
            place.meta.update({k: v for k, v in argument.meta.items() if k == "start"})
            self.places[argument] = place
        return place

    def _is_pure(self, node: exp.Expr) -> bool:
        """True if an expression has no aggregate, window, list or query, itself or by a macro."""
        return all(self._is_pure_node(n) for n in node.walk())

    def _is_pure_node(self, node: exp.Expr) -> bool:
        if isinstance(node, _IMPURE) or law_of(node) is not None:
            return False
        if not isinstance(node, exp.Anonymous):
            return True
        name = node.name.lower()
        if name in AGGREGATES:
            return False
        macro = self.find(name)
        if macro is None:
            return True
        if name not in self.pure:
            self.pure[name] = True  # a macro that refers to itself is refused when it is expanded
            self.pure[name] = macro.law is None and self._is_pure(macro.body)
        return self.pure[name]
