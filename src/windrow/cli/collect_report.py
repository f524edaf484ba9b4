"""What `collect` says before it runs and after."""

from __future__ import annotations

from windrow.cli.text import mean_text, shorten
from windrow.collecting.collection import Collection, Summary
from windrow.collecting.resolve import ResolvedRun
from windrow.engine.control import Control
from windrow.stats.metrics import METRICS, AgentEntry
from windrow.tasks.trust import FLAG

SHOWN_DEMANDS = 20


def opening(collection: Collection) -> str:
    """What is planned, done and left; each is named, also when it is zero."""
    ledger = collection.ledger
    parts = [f"{ledger.size:,} planned", f"{ledger.done_count:,} done", f"{ledger.retry_count:,} to retry"]
    if ledger.final_failure_count:
        parts.append(f"{ledger.final_failure_count:,} failed for good (--redo status=failed runs them again)")
    if collection.to_grade:
        parts.append(f"{collection.to_grade:,} to grade")
    parts.append(f"{ledger.pending_count:,} left to run" if ledger.pending_count else "nothing to run")
    rank = collection.resolved.rank
    whose = f" (rank {rank.number} of {rank.world_size})" if rank is not None else ""
    return f"{collection.path}{whose}: {', '.join(parts)}"


def closing(collection: Collection, summary: Summary, control: Control) -> str:
    """What came of it, the key metrics of each agent, and where everything is."""
    lines = [f"{summary.done:,} of {summary.planned:,} done, {summary.attempts:,} attempts in this call"]
    if collection.progress.rewards:
        mean = collection.progress.reward_sum / collection.progress.rewards
        lines[0] += f", mean reward {mean:.3f} over {collection.progress.rewards:,}"
    for kind, count in collection.progress.failures.items():
        example = collection.resolved.redactor.text(collection.progress.examples[kind])
        lines.append(f"{count:,} × {kind}, such as: {shorten(example, 200)}")
    if summary.failed:
        lines.append(f"{summary.failed:,} failed for good: --redo status=failed runs them again")
    if summary.pending:
        why = control.why or ("stopped" if control.stopping else "failed")
        lines.append(f"{summary.pending:,} not done ({why}): the same command continues")
    if summary.ungraded:
        again = "the same command grades them, or " if collection.resolved.grading is not None else ""
        lines.append(f"{summary.ungraded:,} not graded: {again}--redo grade=failed runs them again")
    if collection.short_groups:
        lines.append(
            f"{collection.short_groups:,} groups have too few samples to be judged together: the same command fills "
            f"them up, or --min-group judges what is there"
        )
    lines += [
        text
        for entry in (collection.metrics.agents if collection.metrics else ())
        for text in key_lines(entry)
    ]
    return "\n".join([*lines, *_paths(collection), f"windrow stats {collection.path}"])


def rows_text(resolved: ResolvedRun) -> str:
    """What the rows name beside data, and what allows it."""
    allowed = resolved.allowed_demands
    if not allowed:
        trusted = f" ({FLAG} is given)" if resolved.context.trust.config.rows else ""
        return f"rows: nothing but data{trusted}"
    shown = [f"  {demand} ({by})" for demand, by in list(allowed.items())[:SHOWN_DEMANDS]]
    if len(allowed) > SHOWN_DEMANDS:
        shown.append("  …")
    return "\n".join(["rows name, beside data:", *shown])


def key_lines(entry: AgentEntry) -> list[str]:
    """An agent's key metrics, and what its environments add."""
    metrics = entry.agent_metrics
    reward = f"reward {mean_text(metrics.reward)}" if metrics.reward else "no rollout is graded"
    parts = [f"pass@{k} {value:.3f}" for k, value in metrics.pass_at.items()]
    coverage = entry.key_metrics.get("coverage")
    if coverage is not None and coverage < 1:
        parts.append(f"coverage {coverage:.1%}")
    extra = [f"{name} {value:g}" for found in metrics.aggregate.values() for name, value in found.items()]
    return [f"{entry.agent}: {reward}", *(f"  {'  '.join(row)}" for row in (parts, extra) if row)]


def _paths(collection: Collection) -> list[str]:
    assert collection.path is not None
    several = collection.resolved.run.workers > 1 or collection.resolved.rank is not None
    logs = "rollouts.*.jsonl" if several else "rollouts.jsonl"
    files = {"run": collection.path, "rollouts": collection.path / logs}
    if collection.metrics is not None:
        files["metrics"] = collection.path / METRICS
    return [f"{name:<8}  {path}" for name, path in files.items()]
