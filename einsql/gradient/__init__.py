"""Gradients: from a graph that computes a loss to one that computes its derivatives.

`terms` are expressions with operators, `expressions` differentiates one expression,
`domains` sums what points contribute to elements, `backward` goes over the graph, and
`paths` finds what has no derivative on the way. What is made are EinSum nodes over the
nodes of the loss themselves, so both passes are planned as one graph.
"""

from einsql.gradient.backward import Backward

__all__ = ["Backward"]
