"""Views of a rollout as a trainer wants them: completions, masks, logprobs, times and tool metrics."""

from __future__ import annotations

from pathlib import Path

from tests.support.exact_token_policy import END, ExactPolicy, ids_of, make_turn, tokens
from tests.support.run_builders import make_rollout
from tests.support.scripted_envs import played, world
from windrow import Completion, Request, RolloutGroup, tool
from windrow.exports.tokens.views import GroupView, RolloutView
from windrow.records import Call, ToolCall, ToolUse


def look(at: str) -> str:
    """Look."""
    if at == "nothing":
        raise ValueError("there is nothing")
    return "a cat"


def asking(request: Request) -> Completion:
    if request.turn == 2:
        return Completion(content="done")
    where = '{"at": "here"}' if request.turn else '{"at": "nothing"}'
    return Completion(content="look", tool_calls=(Call(id=f"c{request.turn}", name="look", arguments=where),))


async def test_a_completion_is_replies_and_results_and_the_mask_is_on_the_replies(tmp_path: Path) -> None:
    policy = ExactPolicy(asking)
    rollout = await played(
        world([], turns=3, tools=[tool(look)]), tmp_path / "run", policy=policy, capture="tokens"
    )
    view = RolloutView(rollout)
    whole = policy.prompts[-1] + policy.outputs[-1]
    [completion], [mask], [logprobs] = view.completion_ids, view.tool_mask, view.logprobs
    assert [*view.prompt_ids[0].tolist(), *completion.tolist()] == whole
    assert view.prompt_ids[0].tolist() == policy.prompts[0]
    assert completion[mask].tolist() == [*ids_of("look"), END, *ids_of("look"), END, *ids_of("done"), END]
    assert set(logprobs[mask].tolist()) == {-0.5}
    assert not logprobs[~mask].any()
    assert view.completion_ids is view.completion_ids  # made once

    origins = [message.origin for message in rollout.completion]
    assert origins == ["policy", "tool", "env", "policy", "tool", "env", "policy", "env"]
    assert rollout.completion == rollout.messages[1:]
    assert rollout.generation_seconds == tuple(turn.seconds for turn in rollout.turns)
    assert len(rollout.tool_seconds) == 3
    assert rollout.tool_seconds[2] == 0.0
    use = rollout.tool_use["look"]
    assert (use.calls, use.failures) == (2, 1)
    assert use.seconds == sum(call.seconds for turn in rollout.turns for call in turn.tool_calls)


def test_a_forked_rollout_has_a_completion_a_sequence() -> None:
    rollout = make_rollout(
        turns=(make_turn(tokens([1], [2])), make_turn(tokens([7], [8]))), capture="tokens", status="truncated"
    )
    assert [ids.tolist() for ids in RolloutView(rollout).completion_ids] == [[2], [8]]
    assert rollout.truncated
    assert rollout.completion == ()


def called(name: str, seconds: float, failed: bool = False) -> ToolCall:
    return ToolCall(id="c", name=name, arguments={}, result=0, failed=failed, started_at=0.0, seconds=seconds)


def test_a_group_has_the_views_of_its_rollouts_in_the_order_of_its_samples() -> None:
    one = make_rollout(
        turns=(make_turn(tokens([1], [2]), tool_calls=(called("look", 1.0), called("go", 2.0))),),
        capture="tokens",
    )
    two = make_rollout(
        sample=1,
        turns=(make_turn(tokens([1], [3]), tool_calls=(called("look", 0.5, failed=True),)),),
        capture="tokens",
        status="truncated",
    )
    group = RolloutGroup(id=one.group, task=one.task, rollouts=(one, two))
    view = GroupView(group)
    assert [[ids.tolist() for ids in of] for of in view.completion_ids] == [[[2]], [[3]]]
    assert [[mask.tolist() for mask in of] for of in view.tool_mask] == [[[True]], [[True]]]
    assert [[values.tolist() for values in of] for of in view.logprobs] == [[[-0.5]], [[-0.5]]]
    assert [len(of) for of in view.sequences] == [1, 1]
    assert group.truncated == (False, True)
    assert group.completions == ((), ())
    assert group.tool_use == {
        "look": ToolUse(calls=2, failures=1, seconds=1.5),
        "go": ToolUse(calls=1, failures=0, seconds=2.0),
    }
