"""Transfer of a version's weights from the trainer to an engine.

Only a small ticket travels. The engine's side fetches the tensors itself.
"""

from trinity.common.weights.collective import shared_by
from trinity.common.weights.receiver import receive, update_from
from trinity.common.weights.ticket import Ticket, fingerprint, layout_fingerprint, num_bytes

__all__ = ["Ticket", "fingerprint", "layout_fingerprint", "num_bytes", "receive", "shared_by", "update_from"]
