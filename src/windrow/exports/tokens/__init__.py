"""Training sequences from the turns of a rollout.

`sequences` makes them, from the prefix tree of all contexts (`tree`, `linking`). `forks` and `drift` report where turns do
not continue each other, and why; `verify` checks that a run's tokens can be trained on; `views` is what a trainer reads.

Everything here works on token ids and needs numpy, which is the extra `tokens`. Writing files belongs in `exports`.
"""

from windrow.registry import import_extra

import_extra("numpy", extra="tokens", what="what is done with token ids")
