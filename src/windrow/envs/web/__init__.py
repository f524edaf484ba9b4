"""The environment `web`: tasks in real browsers, many at a time. Needs the extra `web` and a Chromium.

Here belong the browser pool and its leases, the network policy of pages, actions and observations, and the environment
itself. Sites, benchmarks and their rewards do not: they plug in as a `PageReward`.
"""
