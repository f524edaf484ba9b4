"""The environment `web`: tasks in real browsers, many at a time. Needs the extra `web` and a Chromium.

- The environment: `env`, its `settings`, what the policy is shown (`prompt`, `page_observation`, `page_snapshot`,
  `screenshots`), what it may do (`actions`, `action_parser`, `action_executor`), and how an episode is rewarded
  (`page_checks`, `page_rewards`).
- The browser of an episode: `browser_session`, `first_page`, `waits`, `walls`.
- Browsers for all episodes: `pool`, `fleet`, `pooled_browser`, `lease`, `launch`, `browser_supervisor`.
- What pages may reach: `network_policy`, `socks_proxy`, `blocklist`.

Sites, benchmarks and their rewards do not belong here: they plug in as a `PageReward`.
"""
