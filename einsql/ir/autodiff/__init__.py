"""Gradients: builds the graph of derivatives from the graph of a loss.

`terms` are expressions with operators; `expressions` differentiates one expression. `domains`
sums the contributions of points to elements, and `backward` traverses the graph. `paths`
rejects functions without a derivative; `shifts` detects derivatives that cancel. `signs` infers
finite values. `forms` preserves products of matrices, `parts` limits the size of expressions.

The derivatives are EinSum nodes over the nodes of the loss, so both passes are planned as one
graph.
"""

from einsql.ir.autodiff.backward import Backward

__all__ = ["Backward"]
