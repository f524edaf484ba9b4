"""Training sequences from the turns of a rollout: the prefix tree, masks, the drift report, checks, views.

Everything here works on token ids and needs numpy, which is the extra `tokens`. Writing files belongs in `exports`.
"""

from windrow.registry import import_extra

import_extra("numpy", extra="tokens", what="what is done with token ids")
