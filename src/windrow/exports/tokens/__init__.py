"""From the turns of a rollout to training sequences: the prefix tree, masks, the drift report, checks, views.

All of it needs numpy, which is the extra `tokens`.
"""

from windrow.registry import import_extra

import_extra("numpy", extra="tokens", what="what is done with token ids")
