"""The scorer `nemo-gym`: the verdict of NeMo Gym's verifiers on an episode.

Without settings it reports the verdict of the server that played the episode. With `head` or `url` it sends the
record to the `/verify` of a resources server; so a run can be judged again, and so can episodes that a judge failed
to judge. A verifier that needs the session of the episode cannot do that, and says so (`/reverify_mode`); `force`
asks it all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from windrow.config import nearest
from windrow.envs import Episode, ScoreContext
from windrow.envs.scoring import Verdict
from windrow.errors import EnvError, ScorerError, WindrowError
from windrow.grading.base import BaseScorer
from windrow.integrations.nemo_gym.agent import check_address
from windrow.integrations.nemo_gym.client import Caller, Servers, connected
from windrow.integrations.nemo_gym.episodes import JUDGE_FAILED, NEVER_JUDGED, PLAYED_BY, finite, is_reward
from windrow.integrations.nemo_gym.results import REWARD, STATE, numbers_of, verifier_fields
from windrow.integrations.nemo_gym.rows import FAILURE_CLASS, JUDGE_ERROR, TASK_INDEX, agent_of, split_row
from windrow.integrations.nemo_gym.verify_request import verify_request
from windrow.records import Json, RecordedScore

STATELESS, UNKNOWN = "stateless", "unknown"
AT_ONCE = 32
RETRIES = 3
BACKOFF_S = 0.5
_KNOWN = ("head", "url", "force")


class Verified(BaseScorer):
    """The score `reward` is the verifier's; its other numbers are metrics."""

    version = 1

    def __init__(self, name: str, weight: float, settings: Mapping[str, Json]) -> None:
        super().__init__(name, weight, settings)
        for key in settings:
            if key not in _KNOWN:
                raise ValueError(
                    f"it has no setting {key!r}{nearest(key, _KNOWN)} (known: {', '.join(_KNOWN)})"
                )
        for key in ("head", "url"):
            if key in settings:
                check_address(settings[key], key)
        if not isinstance(settings.get("force", False), bool):
            raise ValueError(f"force must be true or false, found {settings['force']!r:.80}")
        self._asks = "head" in settings or "url" in settings
        self.after_commit = self._asks
        self._servers = Servers(settings["head"]) if "head" in settings else None
        self._modes: dict[str, str] = {}  # by address of a resources server
        self._room = asyncio.Semaphore(AT_ONCE)
        self._learning = asyncio.Lock()

    @classmethod
    def identity(cls, settings: Mapping[str, Json]) -> Json:
        return {}  # where a verifier is does not say what it is

    async def judge(self, episode: Episode, ctx: ScoreContext) -> Verdict:
        state_fields = episode.state.get(STATE) if isinstance(episode.state, dict) else None
        recorded: dict[str, Json] = state_fields if isinstance(state_fields, dict) else {}
        if not self._asks:
            return self._recorded_verdict(recorded)
        try:
            async with self._room:
                return await self._verified(episode, recorded)
        except ScorerError:
            raise
        except WindrowError as problem:
            raise ScorerError(str(problem), kind=problem.kind, retryable=problem.retryable) from None

    def _recorded_verdict(self, recorded: Mapping[str, Json]) -> Verdict:
        """Return the verdict from when the episode was played."""
        if is_reward(recorded.get(REWARD)):
            return self._verdict(recorded[REWARD], {})
        again = f"ask a verifier: windrow rescore RUN --failed-only --scorer {self.name}:http://HEAD"
        if NEVER_JUDGED in recorded:
            raise ScorerError(
                f"the verifier's judge failed: {recorded[NEVER_JUDGED]}; {again}", kind="judge_failed"
            )
        raise ScorerError(f"no server has verified this episode; {again}", kind="not_verified")

    async def _verified(self, episode: Episode, recorded: Mapping[str, Json]) -> Verdict:
        caller = Caller()
        await caller.open()
        try:
            url = await self._url(agent_of(episode.task.data or {}) or recorded.get(PLAYED_BY))
            mode = STATELESS if NEVER_JUDGED in recorded else await self._mode(caller, url)
            if mode != STATELESS and not self.settings.get("force"):
                raise ScorerError(
                    f"{url}/reverify_mode says {mode!r}, not {STATELESS!r}: its verdict may need what only the episode had. "
                    f"Set 'force' to ask it all the same",
                    kind="not_stateless",
                    retryable=False,
                )
            row, _ = split_row(episode.task.data or {})
            sent = {**row, **verify_request(episode), TASK_INDEX: episode.task.index}
            verified = await self._posted(caller, f"{url}/verify", sent)
        finally:
            await caller.close()
        reward = verified.get(REWARD)
        if verified.get(FAILURE_CLASS) is not None:  # the reward beside it stands for nothing
            why = verified.get(JUDGE_ERROR) or verified.get("error") or verified[FAILURE_CLASS]
            raise ScorerError(f"{url}/verify could not judge it: {why!s:.2000}", kind=JUDGE_FAILED)
        if not is_reward(reward):
            raise ScorerError(
                f"{url}/verify gave {reward!r:.80} for a reward, not a finite number", kind="bad_reward"
            )
        evidence = None if mode == STATELESS else {"reverify_mode": mode}
        fields = verifier_fields({key: finite(value) for key, value in verified.items()}, row)
        return self._verdict(reward, numbers_of(fields), evidence)

    async def _posted(self, caller: Caller, url: str, sent: Json) -> dict[str, Json]:
        async def moved() -> None:
            return None

        return await connected(
            lambda: caller.post(url, sent), retries=RETRIES, backoff_s=BACKOFF_S, refused=moved
        )

    async def _url(self, agent: str | None) -> str:
        if self._servers is None:
            return str(self.settings["url"]).rstrip("/")
        async with self._learning:
            if not self._servers.asked:
                await self._servers.learn()
            return (await self._servers.verifier(agent)).url

    async def _mode(self, caller: Caller, url: str) -> str:
        async with self._learning:
            if url not in self._modes:
                self._modes[url] = await self._said_mode(caller, url)
            return self._modes[url]

    async def _said_mode(self, caller: Caller, url: str) -> str:
        try:
            return str(await caller.get(f"{url}/reverify_mode"))
        except EnvError as problem:
            if problem.kind == "http_404":  # it is older than the question
                return UNKNOWN
            raise

    def _verdict(self, reward: Json, metrics: Mapping[str, float], evidence: Any = None) -> Verdict:
        score = RecordedScore(value=float(reward), weight=self.weight, scorer=self.name, evidence=evidence)
        return Verdict({REWARD: score}, dict(metrics))
