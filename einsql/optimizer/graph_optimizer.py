"""The optimizer of EinSum graphs, and the names that switch its rules off."""

from __future__ import annotations

from einsql.errors import InterfaceError, suggest
from einsql.ir.einsum.graph import Node
from einsql.optimizer.rewrite.pipeline import GROUP_NODES, RULES, run_stages
from einsql.optimizer.rewrite.rules import Optimized


def optimize(
    *roots: Node,
    disabled: frozenset[str] = frozenset(),
    until: str | None = None,
    sited: bool = False,
    alone: bool = False,
) -> Optimized:
    """Rewrites a graph into an equal one that is cheaper to run.

    Args:
        roots: The graph, as `apart` makes it of several; each root's schema stays, except flags
            proven TRUE, which go.
        disabled: Names of rules to leave out.
        until: Name of a rule after whose first run to stop.
        sited: Whether the graph will be cut over several sites.
        alone: Whether it will run on the processor of one site.

    Raises:
        InterfaceError: There is no rule of that name.
        InternalError: A rule left a malformed graph behind.
    """
    check_rules(disabled, until)
    return run_stages(roots, disabled=disabled, until=until, sited=sited, alone=alone)


def check_rules(disabled: frozenset[str], until: str | None = None) -> None:
    """Refuses names that no rule has, neither of EinSum graphs nor of plans on sites.

    Raises:
        InterfaceError: There is no rule of that name.
    """
    names = [r.name for r in RULES]
    disabled -= {GROUP_NODES.name}
    for name in (*disabled, *([until] if until is not None else [])):
        if name not in names and not (name in disabled and name in _placed_rules()):
            raise InterfaceError(
                f'There is no rewrite rule "{name}"',
                hint=suggest(name, [*names, GROUP_NODES.name, *_placed_rules()], "rule"),
            )


def _placed_rules() -> list[str]:
    """Names of the rules for plans on sites, which a setting may name as well."""
    from einsql.optimizer import tra  # imported only where a name is not an EinSum rule's

    return [r.name for r in tra.RULES]
