"""Gradients: from a graph that computes a loss to one that computes its derivatives.

`terms` are expressions with operators, `expressions` differentiates one expression,
`domains` sums what points contribute to elements, `backward` goes over the graph, `paths`
finds what has no derivative on the way, and `shifts` what has one that cancels. `signs`
knows which values are finite, `forms` and `parts` keep products and sizes what they were.
What is made are EinSum nodes over the nodes of the loss themselves, so both passes are
planned as one graph.
"""

from einsql.ir.autodiff.backward import Backward

__all__ = ["Backward"]
