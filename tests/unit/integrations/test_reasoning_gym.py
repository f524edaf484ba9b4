"""reasoning-gym: its data sets are tasks that are the same everywhere, and its own verifiers judge the answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collect_helpers import answering, collected
from tests.support.task_loading import refusal, resolved, tasks_of
from windrow import Request, Rollout, load
from windrow.records import Task

pytestmark = pytest.mark.slow

slow = pytest.mark.slow  # the package runs in processes of its own, which take seconds to import it


def saying(answers: dict[str, str]) -> Callable[[Request], str]:
    """Answers each question with what stands here for it."""
    return lambda request: answers[request.messages[-1].text]


async def judged(rows: list[dict[str, Any]], replies: list[str], run: Path, **options: Any) -> list[Rollout]:
    """A rollout for each row, in their order, whose reply is the one given for it."""
    said = {row["prompt"]: reply for row, reply in zip(rows, replies, strict=True)}
    assert len(said) == len(rows)
    options = {"retries": 0, "out": str(run), **options}
    await collected(rows, policy=answering(saying(said)), **options)
    return list(load(run))


def value(rollout: Rollout) -> float:
    assert "reasoning-gym" in rollout.scores, rollout.error
    return rollout.scores["reasoning-gym"].value


def rows_of(source: str) -> list[dict[str, Any]]:
    return [dict(task.data or {}) for task in tasks_of(source)]


# Solved by hand or by what the row says: these have no answer of their own.
SOLVED: dict[str, Callable[[Any], str]] = {
    "graph_color": lambda row: json.dumps(row["metadata"]["possible_answer"]),
    "propositional_logic": lambda row: row["metadata"]["example_answer"],
    "rubiks_cube": lambda row: row["metadata"]["example_correct_answer"],
}
UNSOLVED = ["boxnet", "rush_hour"]


@slow
async def test_each_data_set_is_a_source_and_its_own_answer_scores_1(tmp_path) -> None:
    rows = rows_of("reasoning-gym:all?size=1&seed=4")
    assert len(rows) > 100
    rows = [row for row in rows if row["dataset"] not in UNSOLVED]
    solved = [SOLVED.get(row["dataset"], lambda row: row["answer"])(row) for row in rows]
    rollouts = await judged(rows, [f"<answer>{text}</answer>" for text in solved], tmp_path / "run")
    assert {r.task["dataset"]: value(r) for r in rollouts if value(r) != 1.0} == {}
    assert {(r.status, r.stop, r.grade, r.env, r.reward) for r in rollouts} == {
        ("completed", "answered", "graded", "reasoning-gym", 1.0)
    }


@slow
def test_the_rows_are_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of these depend on the hash seed, one on the random state that all share."""
    names = "isomorphic_strings,list_functions,polynomial_multiplication,ransom_note,word_ladder,chain_sum"
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    first = tasks_of(f"reasoning-gym:{names}?size=12&seed=3")
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    second = tasks_of(f"reasoning-gym:{names}?size=13&seed=3")
    assert len({task.digest for task in first}) == 12 * 6
    assert [task.digest for task in second if task["id"].rpartition(":")[2] != "12"] == [
        task.digest for task in first
    ]
    [other] = tasks_of("reasoning-gym:chain_sum?size=1&seed=900")
    assert other["prompt"] not in {task["prompt"] for task in first}


@slow
async def test_its_verdict_is_its_own_with_partial_credit_also_where_types_are_not_json(tmp_path) -> None:
    """Compared with the package itself, in this process, on entries that were never written down."""
    import reasoning_gym

    names = "chain_sum,rearc,countdown,graph_color,polynomial_equations,knights_knaves,spell_backward,gcd"
    rows = rows_of(f"reasoning-gym:{names}?size=2&seed=1")
    wrong = ["x 1 2 {answer}", "0", "{answer} or so"]
    for number, form in enumerate(wrong):
        replies = [f"<answer>{form.format(answer=row['answer'])}</answer>" for row in rows]
        expected = []
        for row, reply in zip(rows, replies, strict=True):
            own = reasoning_gym.create_dataset(row["dataset"], size=2, seed=1)
            entry = own[row["metadata"]["source_index"]]
            expected.append(own.score_answer(reply[len("<answer>") : -len("</answer>")], entry))
        rollouts = await judged(rows, replies, tmp_path / str(number))
        assert [value(rollout) for rollout in rollouts] == expected
        assert any(0 < credit < 1 for credit in expected)


@slow
async def test_the_answer_is_what_is_marked_else_the_reply(tmp_path, chain_sums) -> None:
    replies = {
        "It is <answer> 5 </answer>.": ("5", 1.0),
        "<answer>1</answer> no: <answer>5</answer>": ("5", 1.0),
        "<think>perhaps 7</think> 5": ("5", 0.0),
        "so <answer>5": ("5", 0.0),
        "5\n": ("5", 0.0),
        "": (None, 0.0),
    }
    rollouts = await judged(chain_sums[: len(replies)], [*replies], tmp_path / "run")
    found = [
        (rollout.scores["reasoning-gym"].evidence, rollout.scores["reasoning-gym.format"].value)
        for rollout in rollouts
    ]
    assert found == [({"answer": answer}, marked) for answer, marked in replies.values()]


@slow
async def test_a_question_is_asked_with_the_packages_own_instructions_or_without(
    tmp_path, chain_sums
) -> None:
    [told] = await judged(chain_sums[:1], ["5"], tmp_path / "1")
    assert [m.role for m in told.messages] == ["system", "user", "assistant"]
    assert "<answer>" in told.messages[0].text
    assert told.messages[1].text == chain_sums[0]["prompt"]
    bare = rows_of("reasoning-gym:chain_sum?size=1&system=none")
    [asked] = await judged(bare, ["5"], tmp_path / "2")
    assert [m.role for m in asked.messages] == ["user", "assistant"]


@slow
async def test_what_a_parameter_changes_is_known_to_the_verifier_too(tmp_path) -> None:
    rows = rows_of("reasoning-gym:word_ladder?size=2&min_word_length=5&max_word_length=5")
    assert {len(row["metadata"]["start_word"]) for row in rows} == {5}
    rollouts = await judged(rows, [f"<answer>{row['answer']}</answer>" for row in rows], tmp_path / "run")
    assert [value(rollout) for rollout in rollouts] == [1.0, 1.0]


@slow
async def test_a_run_is_judged_again_from_its_record_alone(tmp_path) -> None:
    rows = rows_of("reasoning-gym:rearc,chain_sum?size=2")
    replies = [f"<answer>{row['answer']}</answer>" for row in rows]
    first = await judged(rows, replies, tmp_path / "run", scorers=("exact",))
    assert [rollout.reward for rollout in first] == [0.0] * 4
    kept = [dict(rollout.task.data or {}) for rollout in load(tmp_path / "run")]
    again = await judged(kept, replies, tmp_path / "run", scorers=("reasoning-gym",), regrade=True)
    assert [rollout.reward for rollout in again] == [1.0] * 4


# -- answers that are more than answers


@slow
async def test_an_answer_that_is_evaluated_starts_no_program_and_writes_no_file(tmp_path, queens) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    code = [
        f"__import__('os').system('touch {tmp_path}/system')",
        f"open('{tmp_path}/open', 'w')",
        f"__import__('subprocess').run(['touch', '{tmp_path}/run'])",
        f"__import__('os').remove('{kept}')",
        "exit()",
    ]
    replies = [f"<answer>{text}</answer>" for text in code]
    rollouts = await judged(queens[: len(code)], replies, tmp_path / "runs")
    assert len(rollouts) == len(code)
    for rollout in rollouts:
        assert rollout.scores.get("reasoning-gym") is None or value(rollout) < 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "runs"]


@slow
async def test_an_answer_that_patches_the_verifier_changes_no_verdict_but_its_own(tmp_path, queens) -> None:
    """With one process for all, this one raised the mean of the others from 0 to 1."""
    module = "__import__('reasoning_gym.games.n_queens', fromlist=['x'])"
    attack = f"setattr({module}.NQueensDataset, 'score_answer', lambda *_: 1.0)"
    replies = [f"<answer>{text}</answer>" for text in (attack, "no", "0", "Q", "")]
    rollouts = await judged(queens, replies, tmp_path / "run", concurrency=1)
    assert [value(rollout) for rollout in rollouts[1:]] == [0.0] * 4


@slow
async def test_an_answer_that_is_evaluated_reaches_no_key_file_or_host(
    tmp_path, queens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    secret = tmp_path / "secret"
    secret.write_text("sk-canary")
    code = [
        "1",
        f"open({str(secret)!r}).read()",
        "open(f'/proc/{__import__(\"os\").getppid()}/environ').read()",
        "__import__('os').environ['OPENAI_API_KEY']",
        "__import__('os').kill(__import__('os').getppid(), 0)",
    ]
    # A solution as a list of lists scores 0.5: whatever is evaluated before it must raise for the reply to get nothing.
    boards = [[line.split() for line in row["metadata"]["valid_answers"][0].splitlines()] for row in queens]
    replies = [f"<answer>[{text}, {board}][1]</answer>" for text, board in zip(code, boards, strict=True)]
    rollouts = await judged(queens, replies, tmp_path / "run")
    assert [value(rollout) for rollout in rollouts] == [0.5, 0.0, 0.0, 0.0, 0.0]


@slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("__import__('os').write(3, b'forged' * 999)", "wrote something else than one answer"),
        ("[0 for _ in iter(lambda: __import__('os').write(3, b'forged' * 999), 0)]", "wrote more than"),
        ("__import__('os')._exit(0)", "ended with 0 and gave no answer"),
    ],
)
async def test_an_answer_that_spoils_its_process_fails_its_own_grading_and_says_how(
    tmp_path, queens, code: str, said: str
) -> None:
    replies = [f"<answer>{code}</answer>", f"<answer>{queens[1]['answer']}</answer>"]
    spoilt, fine = await judged(queens[:2], replies, tmp_path / "run")
    assert (spoilt.grade, spoilt.reward, value(fine)) == ("failed", None, 1.0)
    assert spoilt.error is not None
    assert said in spoilt.error.message


@slow
@pytest.mark.parametrize("spoiling", ["exit()", "__import__('os')._exit(7)", "__import__('os').close(0)"])
async def test_an_answer_that_spoils_its_process_costs_no_other_its_verdict(
    tmp_path, queens, spoiling: str
) -> None:
    await judged(queens[:1], [f"<answer>{spoiling}</answer>"], tmp_path / "first")
    replies = [f"<answer>{row['answer']}</answer>" for row in queens[1:]]
    rollouts = await judged(queens[1:4], replies[:3], tmp_path / "then", concurrency=1)
    assert [value(rollout) for rollout in rollouts] == [1.0] * 3


@slow
async def test_an_answer_that_would_take_for_ever_to_judge_is_wrong_and_the_next_is_judged(tmp_path) -> None:
    rows = rows_of("reasoning-gym:puzzle24?size=2")
    replies = ["<answer>9**9**9**9</answer>", f"<answer>{rows[1]['answer']}</answer>"]
    sets = ['scorers=[{"name": "reasoning-gym", "settings": {"cpu_s": 1}}]']
    endless, fine = await judged(rows, replies, tmp_path / "run", sets=sets)
    assert (endless.grade, value(endless)) == ("graded", 0.0)
    assert endless.scores["reasoning-gym"].evidence == {"cut": "more than 1 s of processor time"}
    assert value(fine) == 1.0


@slow
async def test_an_answer_that_the_verifier_cannot_read_is_wrong_and_the_record_says_why(tmp_path) -> None:
    [row] = rows_of("reasoning-gym:prime_factorization?size=1")
    [rollout] = await judged([row], ["<answer>hello</answer>"], tmp_path / "run")
    assert (rollout.grade, value(rollout)) == ("graded", 0.0)
    evidence = rollout.scores["reasoning-gym"].evidence
    assert evidence["answer"] == "hello"
    assert evidence["raised"].startswith("ValueError: ")


@slow
@pytest.mark.parametrize("dataset", ["tower_of_hanoi", "no_such"])
async def test_a_row_that_cannot_be_judged_fails_its_grading_and_is_no_zero(
    tmp_path, chain_sums, dataset: str
) -> None:
    row = {**chain_sums[0], "dataset": dataset}  # whose verifier asks for what this row does not have
    [rollout] = await judged([row], ["<answer>1</answer>"], tmp_path / "run")
    assert (rollout.status, rollout.grade, rollout.reward) == ("completed", "failed", None)
    assert rollout.error is not None
    assert (rollout.error.owner, rollout.error.retryable) == ("scorer", False)


# -- the source


@slow
def test_several_data_sets_are_one_source_each_with_parameters_of_its_own() -> None:
    found = resolved("reasoning-gym:gcd,chain_sum?size=2&seed=5&chain_sum.max_terms=2&chain_sum.min_terms=2")
    tasks: list[Task] = [found.source.task(position) for position in range(len(found.source))]
    assert [task["id"] for task in tasks] == ["gcd:5:0", "gcd:5:1", "chain_sum:5:0", "chain_sum:5:1"]
    assert [task["metadata"].get("num_terms") for task in tasks[2:]] == [2, 2]
    assert [task.tags for task in tasks[1:3]] == [("gcd",), ("chain_sum",)]
    assert [task.get("config") for task in tasks[1:3]] == [None, {"max_terms": 2, "min_terms": 2}]
    named = "reasoning-gym:gcd,chain_sum?chain_sum.max_terms=2&chain_sum.min_terms=2&seed=5"
    assert found.source.name == named
    assert [scorer.name for scorer in found.run_scorers.scorers] == ["reasoning-gym"]


@slow
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "chain_summ",
            "reasoning-gym has no data set 'chain_summ'; did you mean 'chain_sum'? (known: ab, acre, ",
        ),
        (
            "chain_sum?min_term=2",
            "reasoning-gym:chain_sum has no parameter 'min_term'; did you mean 'min_terms'? (known: size, seed, "
            "system, min_terms, max_terms, min_digits, max_digits, allow_negation)",
        ),
        ("gcd,chain_sum?max_terms=2", "reasoning-gym:gcd has no parameter 'max_terms'"),
        (
            "chain_sum?min_terms=9&max_terms=2",
            "reasoning-gym:chain_sum refuses these parameters: max_terms must be >= min_terms",
        ),
        ("gcd?system=polite", "has no system prompt 'polite' (known: none, "),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_with_what_is_known(path: str, said: str) -> None:
    assert said in refusal(f"reasoning-gym:{path}")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("gcd?size=0", "size must be a whole number from 1 on, found 0"),
        ("gcd?seed=-1", "seed must be a whole number from 0 on, found -1"),
        ("gcd?maze.size=2", "maze.size is of 'maze', which is not among its data sets"),
        ("", "expected reasoning-gym:NAME"),
    ],
)
def test_a_source_with_a_number_that_cannot_be_is_refused_at_once(path: str, said: str) -> None:
    assert said in refusal(f"reasoning-gym:{path}")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "a row of reasoning-gym has a 'dataset' (its name) and its 'metadata' (an object)"),
        ({"dataset": "gcd", "metadata": []}, "a row of reasoning-gym has a 'dataset'"),
        ({"dataset": "gcd", "metadata": {}, "types": [1]}, "'types' must be an object"),
        ({"dataset": "gcd", "metadata": {}, "system": 7}, "'system' must be a text"),
    ],
)
def test_a_row_without_what_its_verifier_needs_is_refused_before_the_run(
    row: dict[str, Any], said: str
) -> None:
    assert said in refusal([{"env": "reasoning-gym", "prompt": "a", **row}])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpu": 1}, "scorer 'reasoning-gym': it has no setting 'cpu'; did you mean 'cpu_s'?"),
        ({"cpu_s": 0}, "cpu_s must be at least 1 second, found 0"),
        ({"format_weight": "x"}, "format_weight must be a number, found 'x'"),
    ],
)
def test_a_setting_of_the_scorer_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    config = json.dumps([{"name": "reasoning-gym", "settings": settings}])
    assert said in refusal([{"prompt": "a"}], sets=(f"scorers={config}",))


def test_without_its_extra_the_line_to_type_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.integrations.reasoning_gym.tasks.find_spec", lambda name: None)
    assert refusal("reasoning-gym:gcd") == (
        "reasoning-gym:gcd needs the extra 'reasoning-gym'; type: pip install 'windrow-rl[reasoning-gym]'"
    )


@pytest.fixture(scope="module")
def chain_sums() -> list[dict[str, Any]]:
    return rows_of("reasoning-gym:chain_sum?size=6")


@pytest.fixture(scope="module")
def queens() -> list[dict[str, Any]]:
    return rows_of("reasoning-gym:n_queens?size=5")
