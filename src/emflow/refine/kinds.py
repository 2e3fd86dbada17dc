"""The learned E-steps by name, as model files name them."""

from __future__ import annotations

from emflow.refine.images import ImageNetwork
from emflow.refine.tables import TableRefinement

Refinement = ImageNetwork | TableRefinement
KINDS: dict[str, type[ImageNetwork] | type[TableRefinement]] = {
    "image": ImageNetwork,
    "table": TableRefinement,
}
